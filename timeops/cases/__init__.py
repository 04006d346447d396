"""Cases of a spec, as `tidemark test` reads them: transcripts of records and what is expected of them.

Here: the file and its values. Not here: running them (pipelines/case_tests/).
"""
