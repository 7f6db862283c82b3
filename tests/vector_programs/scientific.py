"""Results of numpy, pandas and scipy, to the last bit: each line has a digest of the bytes."""

import hashlib
import sys
import warnings

import numpy as np

warnings.simplefilter("error")
rng = np.random.default_rng(2026)


def report(name, *values):
    digest = hashlib.sha256()
    for value in values:
        array = np.asarray(value)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(
            array.tolist().__repr__().encode() if array.dtype == object else array.tobytes()
        )
    print(name, digest.hexdigest()[:16])


def with_numpy():
    a, b = rng.standard_normal((90, 90)), rng.standard_normal((90, 70))
    spd = a @ a.T + 90 * np.eye(90)
    f = rng.random(5003, dtype=np.float32) * 50 - 20
    d = f.astype(np.float64) / 3
    i = rng.integers(-(2**62), 2**62, 4001)
    report("multiply", a @ b, a.astype(np.float32) @ b.astype(np.float32), a.dot(a[0]))
    report("complex", (a + 1j * a.T) @ b, np.abs(a + 2j * a.T), np.exp(1j * a))
    report("solve", np.linalg.solve(spd, b), np.linalg.inv(spd), np.linalg.det(spd / 90))
    report("factor", np.linalg.cholesky(spd), *np.linalg.qr(b))
    report("eigenvalues", *np.linalg.eigh(spd), np.linalg.eigvals(a))
    report("singular values", *np.linalg.svd(b), np.linalg.lstsq(a, b, rcond=None)[0])
    report("fft", np.fft.fft(d), np.fft.rfft(f), np.fft.ifft2(a))
    report("sort", np.sort(f), np.sort(d), np.sort(i), np.sort(i.astype(np.int16)))
    report("partition", np.argsort(d, kind="stable"), np.unique(i % 97), np.median(d))
    report("sums", f.sum(), d.sum(), d.cumsum(), d.mean(), d.var(), i.sum(), (1 + f / 1e4).prod())
    for name in ["sin", "cos", "tan", "arctan", "tanh", "exp", "expm1", "exp2", "cbrt", "sinh"]:
        function = getattr(np, name)
        report(name, function(f / 8), function(d / 8))
    for name in ["log", "log2", "log10", "log1p", "sqrt", "reciprocal"]:
        function = getattr(np, name)
        report(name, function(np.abs(f) + 0.5), function(np.abs(d) + 0.5))
    report("power", np.abs(f) ** 1.7, np.hypot(d, 3), np.arctan2(f, 2), np.float_power(2, d / 9))
    report("round", np.floor(d), np.rint(f), np.trunc(d), np.modf(f)[0], np.fmod(d, 1.5))
    report("half", f.astype(np.float16), f.astype(np.float16) * np.float16(3), np.spacing(f))
    report("convert", d.astype(np.int32), i.astype(np.float32), (d * 9).astype(np.int8))
    report("integers", i * 3, i // 1000, i % 77, i & 0xFF0F, i >> 7, np.bitwise_count(i), -i)
    report("compare", f > 1, d == d[::-1], np.isnan(np.sqrt(d + 10)), np.maximum(f, f[::-1]))
    report("choose", np.where(d > 0, d, -d), d[d > 3], np.clip(f, -3, 3), np.take(d, i % 5003))
    report("extremes", f.argmax(), d.argmin(), f.max(), i.min(), np.nanmax(d))
    report("bits", np.packbits(f > 0), np.unpackbits(i.view(np.uint8)[:99]), np.flatnonzero(d > 9))
    report("einsum", np.einsum("ij,jk->ik", a, b), np.einsum("ij,ij->", a, a), np.outer(f, f[:9]))
    report(
        "polynomial",
        np.polyval([1.5, -2, 0.25], d),
        np.convolve(d, a[0]),
        np.interp(d, *np.sort(a[:2])),
    )
    report(
        "random", rng.normal(size=99), rng.gamma(2, size=99), rng.permutation(99), rng.bytes(9)[0]
    )
    report(
        "text", np.char.upper(np.array(["alpha", "beta"] * 9)), np.strings.find("a" * 40 + "b", "b")
    )


def with_scipy():
    from scipy import fft, integrate, interpolate, linalg, ndimage, optimize, signal, sparse
    from scipy import spatial, special, stats
    from scipy.sparse.linalg import eigsh, spsolve

    a = rng.standard_normal((60, 60))
    x = np.linspace(0.1, 9, 901)
    y = np.sin(x) + rng.standard_normal(901) / 9
    m = sparse.diags_array([1.0, -2.5, 1.25], offsets=[-1, 0, 1], shape=(300, 300), format="csc")
    report("scipy.linalg", linalg.expm(a / 60), *linalg.lu(a), linalg.schur(a)[0])
    report("scipy.fft", fft.dct(y), fft.rfftn(a), fft.fft(y.astype(np.float32)))
    report(
        "scipy.integrate", integrate.quad(lambda t: np.exp(-t * t), 0, 3), integrate.simpson(y, x=x)
    )
    orbit = integrate.solve_ivp(lambda t, v: [v[1], -np.sin(v[0])], (0, 9), [1, 0], rtol=1e-9)
    report("scipy.ivp", orbit.t, orbit.y)
    report(
        "scipy.interpolate",
        interpolate.CubicSpline(x, y)(x[:-1] + 0.003),
        interpolate.splrep(x, y, s=9)[1],
    )
    found = optimize.minimize(optimize.rosen, [1.3, 0.7, 0.8, 1.9], method="BFGS")
    report(
        "scipy.optimize", found.x, optimize.brentq(np.cos, 1, 2), optimize.linear_sum_assignment(a)
    )
    report(
        "scipy.signal",
        signal.savgol_filter(y, 31, 3),
        signal.fftconvolve(y, y),
        signal.find_peaks(y)[0],
    )
    report(
        "scipy.ndimage",
        ndimage.gaussian_filter(a, 2),
        ndimage.zoom(a, 1.5),
        ndimage.median_filter(a, 3),
    )
    report(
        "scipy.sparse",
        spsolve(m, x[:300]),
        (m @ m).toarray(),
        eigsh(m @ m.T, k=3, v0=np.ones(300))[0],
    )
    tree = spatial.KDTree(a[:, :3])
    report("scipy.spatial", *tree.query(a[:9, 3:6], k=4), spatial.ConvexHull(a[:, :3]).volume)
    report(
        "scipy.spatial.distance",
        spatial.distance.cdist(a, a[:20]),
        spatial.Delaunay(a[:, :2]).simplices,
    )
    report(
        "scipy.special", special.gamma(x), special.jv(1.5, x), special.erf(x), special.zeta(x + 1)
    )
    report(
        "scipy.stats", stats.norm.cdf(y), stats.ks_2samp(y, x).pvalue, stats.linregress(x, y).slope
    )


def with_pandas():
    import io

    import pandas as pd

    n = 3000
    frame = pd.DataFrame(
        {
            "key": rng.choice(["north", "south", "east", "west"], n),
            "day": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 90, n), unit="D"),
            "count": rng.integers(0, 100, n),
            "value": rng.standard_normal(n),
        }
    )
    groups = frame.groupby("key")["value"]
    report(
        "pandas.groupby", groups.mean(), groups.std(), groups.quantile([0.1, 0.9]), groups.cumsum()
    )
    report(
        "pandas.rolling",
        frame["value"].rolling(30).mean()[30:],
        frame["value"].ewm(span=9).var()[1:],
    )
    report(
        "pandas.sort", frame.sort_values(["key", "count", "value"])["value"], frame["count"].rank()
    )
    report(
        "pandas.pivot",
        frame.pivot_table(index="day", columns="key", values="count", aggfunc="sum", fill_value=0),
    )
    other = pd.DataFrame({"key": ["north", "west"], "weight": [0.5, 2.25]})
    merged = frame.merge(other, on="key")
    report("pandas.merge", merged["value"] * merged["weight"], frame["key"].value_counts())
    report("pandas.resample", frame.set_index("day")["value"].resample("W").agg(["sum", "max"]))
    text = frame.to_csv(index=False)
    again = pd.read_csv(io.StringIO(text), parse_dates=["day"])
    report(
        "pandas.csv",
        again["value"],
        again["day"].dt.day_of_week,
        frame["key"].str.upper().str.len(),
    )
    print(frame.describe().to_string(), merged.tail(3).to_json(date_format="iso"))


{"numpy": with_numpy, "scipy": with_scipy, "pandas": with_pandas}[sys.argv[1]]()
