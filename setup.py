from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["rmqha", "rmqha.*"]), "twisted.plugins"],
    package_dir={"": "."},  # an editable install is then a plain path entry, which twistd's plugin search needs
    package_data={"rmqha": ["py.typed"]},
    zip_safe=False,
)
