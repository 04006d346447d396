"""The state of a day of a window, as an exit code: 0 if no live run changes the day any more, else 75.

Usage: python day_is_complete.py SPEC windows/NAME DAY, in the environment of Tidemark. Another exit code is an error.
"""

import sys

import tidemark as tm

spec, table, day = sys.argv[1:]
if tm.is_complete(spec, table.removeprefix("windows/"), day):
    print(f"{table} of {day} is complete")
else:
    print(f"{table} of {day} may change: the watermark is {tm.status(spec).watermark}")
    sys.exit(75)
