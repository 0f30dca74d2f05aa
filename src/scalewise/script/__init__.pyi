from .entry import begin as begin
from .entry import join_rehearsal as join_rehearsal
from .monitored import monitor as monitor
from .place import changed_files as changed_files
from .place import python_path as python_path
