from .examination import examine as examine
from .examination import find_devices as find_devices
from .examination import leased as leased
from .plan import Plan as Plan
