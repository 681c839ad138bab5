from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["rmqha", "rmqha.*"]), "rmqha.web.templates", "twisted.plugins"],
    py_modules=["pyspark_rmqha", "pyspark_rmqha_archive"],  # found by Spark by its name
    package_dir={"": "."},  # an editable install is then a plain path entry, which twistd's plugin search needs
    package_data={
        "rmqha": ["py.typed", "settings/java_settings.txt", "pipeline/log4j2.properties"],
        "rmqha.web.templates": ["*.html"],
    },
    zip_safe=False,
)
