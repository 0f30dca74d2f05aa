from .labelled import AG_NEWS as AG_NEWS
from .labelled import HEAD_ROWS as HEAD_ROWS
from .labelled import IMDB as IMDB
from .labelled import read_labelled_csv as read_labelled_csv
from .tokenize import load_index as load_index
from .tokenize import token_count as token_count
from .tokenize import tokenize_text as tokenize_text
