from .builder import ReportFolderError as ReportFolderError
from .builder import build as build
from .builder import print_console as print_console
from .builder import report_sections as report_sections
from .console import comparison_text as comparison_text
from .console import show_doctor as show_doctor
from .export import results_json as results_json
from .study import build_study as build_study
