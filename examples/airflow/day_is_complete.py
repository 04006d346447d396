"""Whether live runs change a day of a window any more: exit code 0 if not, 75 as long as they may.

Usage: python day_is_complete.py SPEC windows/NAME DAY, in the environment of Tidemark. Another exit code is an error.
"""

import sys
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import tidemark as tm

spec, table, day = sys.argv[1:]
pipeline, status = tm.spec(spec), tm.status(spec)
zone = ZoneInfo(pipeline.partitions.time_zone)
end = datetime.combine(date.fromisoformat(day) + timedelta(days=1), time(), zone)
if status.is_flushed or (status.watermark is not None and status.watermark >= end):
    print(f"{table} of {day} is complete")
else:
    print(f"{table} of {day} may change: the watermark is {status.watermark}")
    sys.exit(75)
