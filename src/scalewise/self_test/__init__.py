"""Does the diagnosis find what was planted, and only that?

``plan`` says what is planted and how strongly, ``observe`` what the diagnosis named in each run,
``matrix`` counts it (confusion matrix, detection limits), ``page`` writes it down. The runs
themselves are started by ``benchmarks/self_test.py``.
"""
