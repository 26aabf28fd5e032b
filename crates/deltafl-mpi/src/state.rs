//! The state that a run resumes from, from rank 0 to all: only rank 0 reads the run folder.

use deltafl::params::Params;
use deltafl::superquantile::private::LossRange;
use deltafl::training::{State, TrackState};
use serde::{Deserialize, Serialize};

use crate::world::World;

#[derive(Serialize, Deserialize)]
struct Header {
    seed: u64,
    round: u64,
    tracks: Vec<TrackHeader>,
}

#[derive(Serialize, Deserialize)]
struct TrackHeader {
    /// Bits of η.
    eta: Option<u64>,
    range: LossRange,
    /// The first track with the same parameters in memory: ranks that disagree on who shares would ask
    /// different questions.
    like: usize,
}

/// The state of rank 0, on all ranks.
pub(crate) fn of_root(world: &World, state: Option<State>) -> Option<State> {
    let json = state.as_ref().map_or(Vec::new(), |state| {
        serde_json::to_vec(&header(state)).expect("a header has string keys and finite numbers")
    });
    let json = world.bytes_of_root(json);
    if json.is_empty() {
        return None;
    }
    let header: Header = serde_json::from_slice(&json).expect("rank 0 runs the same program");
    let mut tracks: Vec<TrackState> = Vec::with_capacity(header.tracks.len());
    for (i, track) in header.tracks.into_iter().enumerate() {
        let params = match tracks.get(track.like) {
            Some(like) => like.params.clone(),
            None => params_of_root(world, state.as_ref().map(|state| &state.tracks[i].params)),
        };
        tracks.push(TrackState { params, eta: track.eta.map(f64::from_bits), range: track.range });
    }
    Some(State { seed: header.seed, round: header.round, tracks })
}

fn header(state: &State) -> Header {
    let like = |track: &TrackState| {
        state.tracks.iter().take_while(|other| !other.params.is_same(&track.params)).count()
    };
    let track = |track: &TrackState| TrackHeader {
        eta: track.eta.map(f64::to_bits),
        range: track.range,
        like: like(track),
    };
    Header { seed: state.seed, round: state.round, tracks: state.tracks.iter().map(track).collect() }
}

fn params_of_root(world: &World, params: Option<&Params>) -> Params {
    let bytes = params.map_or(Vec::new(), |params| {
        params.as_slice().iter().flat_map(|entry| entry.to_le_bytes()).collect()
    });
    let bytes = world.bytes_of_root(bytes);
    let entries = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    entries.collect::<Vec<f32>>().into()
}
