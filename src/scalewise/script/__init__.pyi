from .entry import begin as begin
from .place import python_path as python_path
