"""What a comparison found: layers and gradients of each precision, and where the errors begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_tpu.numerics.measures import Errors, Tolerance


@dataclass(frozen=True)
class LayerResult:
    """One call of a module."""

    name: str
    """As in `named_modules`; empty for the model itself."""
    index: int
    """The how many-th call of this module it is, from 0."""
    kind: str
    """The class."""
    shape: tuple[int, ...]
    """Of its first result."""
    leaf: bool
    """It called no module itself, so all that it computes is its own."""
    accumulated: Errors | None
    """Of the model's run on the device against its run on the CPU: made here or handed on. None: see `note`."""
    isolated: Errors | None = None
    """Of the module's own code on the device, given what the CPU's was given: made here. None: see `note`."""
    cpu_error: Errors | None = None
    """Of that code on the CPU against float64: what float32 itself costs. None: it does not run in float64."""
    device_error: Errors | None = None
    """Of that code on the device against float64."""
    note: str = ""
    """Why something could not be compared."""

    @property
    def within(self) -> bool:
        """Whether it is within tolerance in the model's run."""
        return self.accumulated is not None and self.accumulated.within

    @property
    def sound(self) -> bool:
        """Whether its own code is within tolerance, or at least as near to float64 as the CPU's is.

        Code that was not or could not be run alone counts as sound.
        """
        if self.isolated is None or self.isolated.within:
            return True
        known = self.cpu_error is not None and self.device_error is not None
        return known and self.device_error.max_abs <= self.cpu_error.max_abs  # type: ignore[union-attr]

    def __str__(self) -> str:
        again = f", call {self.index + 1}" if self.index else ""
        return f"{self.name or 'the model'} ({self.kind}{again})"

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"name": self.name, "call": self.index, "kind": self.kind, "shape": list(self.shape)}
        row |= {"leaf": self.leaf, "within": self.within, "sound": self.sound, "note": self.note}
        for name in ("accumulated", "isolated", "cpu_error", "device_error"):
            errors = getattr(self, name)
            row[name] = None if errors is None else errors.to_json()
        return row


@dataclass(frozen=True)
class GradientResult:
    """The gradient of one parameter."""

    name: str
    shape: tuple[int, ...]
    errors: Errors | None
    """None: only one side has this gradient."""

    @property
    def within(self) -> bool:
        return self.errors is not None and self.errors.within

    def to_json(self) -> dict[str, Any]:
        errors = None if self.errors is None else self.errors.to_json()
        return {"name": self.name, "shape": list(self.shape), "within": self.within, "errors": errors}


@dataclass(frozen=True)
class PrecisionResult:
    """What one setting of the device gave."""

    precision: str
    layers: tuple[LayerResult, ...]
    """In the order their calls end: a module after those inside it, the model last."""
    gradients: tuple[GradientResult, ...] = ()
    """From the last parameter to the first, about as the backward pass makes them."""

    @property
    def first_out(self) -> LayerResult | None:
        """The first layer that is out of tolerance in the model's run."""
        return next((layer for layer in self.layers if not layer.within), None)

    @property
    def first_made(self) -> LayerResult | None:
        """The first layer whose own code makes an error beyond tolerance."""
        return next((layer for layer in self.layers if not layer.sound), None)

    @property
    def first_gradient(self) -> GradientResult | None:
        """The first gradient out of tolerance."""
        return next((gradient for gradient in self.gradients if not gradient.within), None)

    @property
    def within(self) -> bool:
        """Whether all layers and gradients of the model's run are within tolerance."""
        return self.first_out is None and self.first_gradient is None

    def to_json(self) -> dict[str, Any]:
        made, out, gradient = self.first_made, self.first_out, self.first_gradient
        return {
            "precision": self.precision,
            "within": self.within,
            "first_made": None if made is None else made.name,
            "first_out": None if out is None else out.name,
            "first_gradient": None if gradient is None else gradient.name,
            "layers": [layer.to_json() for layer in self.layers],
            "gradients": [gradient.to_json() for gradient in self.gradients],
        }


@dataclass(frozen=True)
class Report:
    """All settings of one comparison."""

    model: str
    device: str
    tolerance: Tolerance
    results: tuple[PrecisionResult, ...]

    def __getitem__(self, precision: str) -> PrecisionResult:
        for result in self.results:
            if result.precision == precision:
                return result
        known = ", ".join(result.precision for result in self.results)
        raise KeyError(f"there is no result for {precision!r}; there are: {known}")

    @property
    def holds(self) -> bool:
        """Whether some setting keeps the whole model within tolerance."""
        return any(result.within for result in self.results)

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "device": self.device,
            "rtol": self.tolerance.rtol,
            "atol": self.tolerance.atol,
            "results": [result.to_json() for result in self.results],
        }
