"""The tests. Hypothesis has no deadlines in any of them: a busy machine makes an example slow, and not wrong."""

import hypothesis

hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")
