"""The log as control items have changed it: records taken out, let in, corrected or removed, and changed specs.

Here: what `log_control` says, and the records that follow from it. Not here: adding records to the log
(assets/ingestion/), decisions on records and the tables that follow from them (assets/rebuild/).
"""
