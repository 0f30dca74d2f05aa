from .labelled import AG_NEWS as AG_NEWS
from .labelled import IMDB as IMDB
from .labelled import CsvLayout as CsvLayout
from .labelled import held_out_of as held_out_of
from .labelled import look_at_csv as look_at_csv
from .token_index import check_sizes as check_sizes
from .token_index import load_index as load_index
