from .labelled import AG_NEWS as AG_NEWS
from .labelled import IMDB as IMDB
from .labelled import look_at_csv as look_at_csv
from .token_index import load_index as load_index
from .tokenize import token_count as token_count
from .tokenize import tokenize_text as tokenize_text
