"""The tests. Hypothesis has no deadlines in any of them: a busy machine makes an example slow, and not wrong.

With ``--hypothesis-profile=quick``, as in ``make quick``, it tries fewer examples.
"""

import hypothesis

hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=20)
hypothesis.settings.load_profile("patient")
