from .examination import examine as examine
from .examination import examine_cell as examine_cell
from .examination import find_devices as find_devices
from .examination import leased as leased
from .plan import Plan as Plan
