//! Secure aggregation without I/O: the server learns the sum of the devices' vectors, and who took part.
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
//! The server is taken to lie, and to have accomplices among the devices: [`graph::GraphRule::Active`] is the
//! default, with the full graph and t > (n+c)/2 for up to 300 devices and a k-regular graph beyond whose
//! (k, t) leave it one large sum per slot, whatever it says to whom ([`graph::parameters`]). Devices that lie are named, and left out or corrected ([`server::Misbehaviour`]). The whole
//! argument, the table of bounds and what is not claimed are in `docs/src/explanation/secure-aggregation.md`; the attacks are
//! carried out in `src/attacks`.
//!
//! | to | read |
//! |---|---|
//! | run a round in one process | [`simulate`] |
//! | drive a round over a network | [`server::ServerRound`], [`device::DeviceRound`], [`message`] |
//! | choose who shares with whom | [`graph`], [`graph::parameters`] |
//! | draw a cohort that devices can check | [`draw`] |
//! | keep what a device must not forget | [`device::SeenRounds`] |
//! | check the cryptography | [`identity`], [`shamir`], [`mask`], [`transcript`], `docs/src/explanation/secure-aggregation.md` |
//!
//! Nothing here opens a socket, reads a clock or draws randomness of its own: messages, time and generators
//! are handed in. A round from a seeded generator is the same round every time.

#[cfg(test)]
mod attacks;
pub mod device;
pub mod draw;
pub mod field;
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
