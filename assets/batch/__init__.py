"""One batch: its segment of the log, what was judged of it, and the items of the log that control it.

Here: planning, judging, writing as one attempt. Not here: what a stage computes (../).
"""
