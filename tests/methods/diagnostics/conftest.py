from scripted_run import scripted_run  # noqa: F401
