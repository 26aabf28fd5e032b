//! The arithmetic of the models: a plain reference per operation, and fast versions per instruction
//! set.
//!
//! The instruction set is selected once, when a model is created, and used for every operation of
//! that model. The default build is fast on any machine and does not depend on `target-cpu`.
//!
//! On one instruction set, the bits of a result depend only on the inputs. Between instruction sets
//! the bits may differ, because sums are split differently and a fused multiply-add rounds once.
//! Pin one instruction set to compare runs of different machines.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub(crate) mod activation;
pub(crate) mod affine;
mod aligned;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod bag;
pub(crate) mod cells;
pub(crate) mod conv;
mod denormals;
pub(crate) mod dispatch;
pub(crate) mod elementwise;
pub(crate) mod fixed_point;
pub(crate) mod gru;
pub(crate) mod logistic;
pub(crate) mod lstm;
pub(crate) mod pooled;
pub(crate) mod portable;
mod prefetch;
pub(crate) mod product;
pub(crate) mod robust;
pub(crate) mod rotation;
pub(crate) mod simd;
pub(crate) mod softmax;
pub(crate) mod sums;
pub(crate) mod transpose;
pub(crate) mod winograd;
pub(crate) mod words;

pub use aligned::Aligned;
pub use denormals::{FlushDenormals, flush_denormals};
pub(crate) use prefetch::prefetch;

/// An instruction set with kernels.
///
/// ```
/// use deltafl::kernel::Isa;
/// assert!(Isa::detect().is_available());
/// assert_eq!("avx2".parse(), Ok(Isa::Avx2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isa {
    /// Plain loops, as a reference for the others.
    Reference,
    /// Vectors that the compiler lowers to the target (NEON on ARM, SSE2 on old x86).
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, DQ, VL).
    Avx512,
}

/// This CPU does not support the instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this CPU has no {isa}; its best kernel is {}", Isa::detect())]
pub struct UnavailableIsa {
    /// The requested instruction set.
    pub isa: Isa,
}

/// No instruction set has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no kernel is called {name:?}; choose reference, portable, avx2 or avx512")]
pub struct UnknownIsa {
    /// The name that was parsed.
    pub name: String,
}

impl Isa {
    /// All instruction sets, slowest first.
    pub const ALL: [Self; 4] = [Self::Reference, Self::Portable, Self::Avx2, Self::Avx512];

    /// Returns the fastest instruction set that this CPU supports.
    pub fn detect() -> Self {
        Self::available().last().unwrap_or(Self::Reference)
    }

    /// Returns the instruction sets that this CPU supports, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Returns true if this CPU supports the instruction set.
    pub fn is_available(self) -> bool {
        match self {
            Self::Reference | Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// Returns itself if this CPU supports it.
    pub fn require(self) -> Result<Self, UnavailableIsa> {
        if self.is_available() { Ok(self) } else { Err(UnavailableIsa { isa: self }) }
    }

    /// Returns its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Self, UnknownIsa> {
        Self::ALL
            .into_iter()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| UnknownIsa { name: name.to_owned() })
    }
}

/// Computes C ← A·B for square matrices of `side`, a multiple of 32: A and C row by row, B in
/// panels of 32 columns.
///
/// The models consist of such products. The rate of a large one is the practical peak of a machine.
///
/// # Panics
/// If this CPU does not support the instruction set, or a matrix does not have `side²` entries.
pub fn square_product(isa: Isa, side: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
    let shape = product::Shape { m: side, n: side, k: side };
    let a = product::Entries { values: a, row: side, column: 1 };
    let layouts = [product::Layout::panels(side), product::Layout::rows(side)];
    product::product(Granted::new(isa), shape, a, b, layouts[0], c, layouts[1], 0.0);
}

/// Proof that this CPU supports an instruction set, required to call its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted(Isa);

impl Granted {
    /// # Panics
    /// If this CPU does not support it. [`Isa::require`] checks an experiment before any model is
    /// created.
    pub(crate) fn new(isa: Isa) -> Self {
        assert!(isa.is_available(), "a model was made for {isa}, which this CPU lacks");
        Self(isa)
    }

    /// Returns the fastest one, for operations with the same bits on all instruction sets.
    pub(crate) fn best() -> Self {
        Self(Isa::detect())
    }

    pub(crate) fn isa(self) -> Isa {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse(), Ok(isa));
            assert_eq!(serde_json::to_string(&isa).unwrap(), format!("\"{isa}\""));
        }
        assert!("sse9".parse::<Isa>().is_err());
    }

    #[test]
    fn the_detected_kernel_is_granted() {
        assert_eq!(Isa::detect().require(), Ok(Isa::detect()));
        assert_eq!(Granted::new(Isa::detect()).isa(), Isa::detect());
    }
}
