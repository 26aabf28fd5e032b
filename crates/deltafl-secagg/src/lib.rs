//! Secure aggregation without I/O: the server learns the sum of the devices' vectors and nothing else.
//!
//! The practical protocol of Bonawitz et al. (CCS 2017) and its k-regular variant (Bell et al., CCS 2020).
//! Device u hides its vector x_u under a mask of its own and under one mask for each neighbour, which that
//! neighbour takes off again by adding its opposite:
//!
//! ```text
//! y_u = x_u + PRG(b_u) + Σ_{v~u, u<v} PRG(s_uv) − Σ_{v~u, v<u} PRG(s_uv)        in Z_2³² or Z_2⁶⁴
//! ```
//!
//! b_u and the key behind all s_uv are secret-shared among the neighbours. When a device has dropped out, t
//! of its neighbours give the server the key, so that its masks can be taken off the others' vectors; when it
//! has not, they give b_u; never both, and only after t devices have signed what they were shown.
//!
//! | to | read |
//! |---|---|
//! | run a round in one process | [`simulate`] |
//! | drive a round over a network | [`server::Server`], [`device::Device`], [`message`] |
//! | choose who shares with whom | [`graph`], [`graph::parameters`] |
//! | turn updates into ring elements | [`encoding`], [`ring`] |
//! | check the cryptography | [`identity`], [`shamir`], [`mask`], [`transcript`], `docs/threat-model.md` |
//!
//! Nothing here opens a socket, reads a clock or draws randomness of its own: messages, time and generators
//! are handed in. A round from a seeded generator is the same round every time.

pub mod device;
pub mod encoding;
pub mod field;
#[doc(hidden)]
pub mod fuzzing;
pub mod graph;
pub mod identity;
mod keys;
pub mod mask;
pub mod message;
pub mod params;
pub mod ring;
pub mod server;
pub mod shamir;
pub mod simulate;
pub mod transcript;
