"""Places: folders and files of the file system, of an object store or of HDFS, and how each library reaches them.

Here: the place that a text names, credentials, whether a store can be used. Not here: tables (resources/delta/),
sources (resources/sources/).
"""
