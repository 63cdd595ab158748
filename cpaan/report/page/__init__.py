"""The report as one page: from the files of a study to a self-contained ``index.html``."""
