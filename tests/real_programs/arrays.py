import numpy as np

a = np.arange(10000, dtype=float).reshape(100, 100)
print(np.linalg.matrix_rank(a), (a @ a).trace(), np.sort(a, axis=None)[-3:])
print(np.fft.fft(np.ones(8)).real, np.random.default_rng(1).integers(100, size=5))
