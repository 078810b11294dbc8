"""How the hot functions of this package are compiled.

`kernel` is numba's njit without reference counting. Simulator kernels pass one record of some twenty arrays around;
counting references to each of them on every call cost four fifths of the time. The price: a kernel may not make arrays
or whole-array assignments, only read and write the elements of those it is given (work space is in `Sim.scratch`).
`error_model="numpy"` leaves out Python's checks for division by zero; integer division here is by sizes that are >= 1.
"""

from __future__ import annotations

from numba import njit

kernel = njit(cache=True, error_model="numpy", _nrt=False)
