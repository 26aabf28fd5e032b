//! Checkpoints: the state of one seed as a safetensors file, params per track.
//!
//! The tensors `track-0`, `track-1`, … hold w, and `track-0.NAME` the vectors that a track's algorithm remembers; everything
//! else stands as JSON under one metadata key, because the format keeps no order among several, and equal states must be
//! equal bytes. This is the one form of a state: MPI ranks exchange these bytes too.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde::{Deserialize, Serialize};

use super::{RunFolderError, atomic, io_error};
use deltafl::memory::Memory;
use deltafl::params::Params;
use deltafl::training::{State, TrackState};

/// The metadata key.
const KEY: &str = "deltafl";

/// Why a file is not a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// Not a whole safetensors file.
    #[error("it is damaged or truncated")]
    Damaged(#[from] safetensors::SafeTensorError),
    /// The metadata is missing or malformed.
    #[error("it carries no state of a run")]
    NoState,
    /// A tensor is not a vector of `f32`.
    #[error("tensor {name} is not a vector of f32")]
    Tensor {
        /// Its name.
        name: String,
    },
    /// Another number of tracks or parameters.
    #[error("its tracks or parameters are not those of the experiment")]
    OtherModel,
}

/// All of a state but the parameters.
#[derive(Serialize, Deserialize)]
struct Header {
    seed: u64,
    round: u64,
    tracks: Vec<TrackHeader>,
}

#[derive(Serialize, Deserialize)]
struct TrackHeader {
    /// The numbers of its memory, as their bits: JSON has no infinity.
    numbers: BTreeMap<String, u64>,
    /// The names of the vectors of its memory.
    vectors: Vec<String>,
}

/// Where the checkpoint of a seed lies.
pub(super) fn path(folder: &Path, seed: u64) -> PathBuf {
    folder.join("checkpoint").join(format!("seed-{seed}.safetensors"))
}

/// Replaces the checkpoint of the state's seed.
pub(super) fn write(folder: &Path, state: &State) -> Result<(), RunFolderError> {
    let path = path(folder, state.seed);
    let bytes = encode(state).map_err(|source| RunFolderError::Checkpoint { path: path.clone(), source })?;
    atomic::write(&path, &bytes).map_err(io_error(&path))
}

/// The checkpoint of a seed; `None` when there is none.
pub(super) fn read(folder: &Path, seed: u64) -> Result<Option<State>, RunFolderError> {
    let path = path(folder, seed);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error(&path)(e)),
    };
    decode(&bytes).map(Some).map_err(|source| RunFolderError::Checkpoint { path, source })
}

/// The bytes of a state's checkpoint: equal states, equal bytes.
pub fn encode(state: &State) -> Result<Vec<u8>, CheckpointError> {
    let track_header = |track: &TrackState| TrackHeader {
        numbers: track.memory.numbers().map(|(name, number)| (name.to_owned(), number.to_bits())).collect(),
        vectors: track.memory.vectors().map(|(name, _)| name.to_owned()).collect(),
    };
    let tracks = state.tracks.iter().map(track_header).collect();
    let header = Header { seed: state.seed, round: state.round, tracks };
    let json = serde_json::to_string(&header).map_err(|_| CheckpointError::NoState)?;
    let mut bytes: Vec<(String, Vec<u8>)> = Vec::new();
    for (i, track) in state.tracks.iter().enumerate() {
        bytes.push((format!("track-{i}"), little_endian(&track.params)));
        for (name, vector) in track.memory.vectors() {
            bytes.push((format!("track-{i}.{name}"), little_endian(vector)));
        }
    }
    let mut tensors = Vec::with_capacity(bytes.len());
    for (name, bytes) in &bytes {
        tensors.push((name.clone(), TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes)?));
    }
    Ok(serialize(tensors, Some(HashMap::from([(KEY.to_owned(), json)])))?)
}

fn little_endian(params: &Params) -> Vec<u8> {
    params.as_slice().iter().flat_map(|entry| entry.to_le_bytes()).collect()
}

/// The state of a checkpoint's bytes.
pub fn decode(bytes: &[u8]) -> Result<State, CheckpointError> {
    let (_, metadata) = SafeTensors::read_metadata(bytes)?;
    let json = metadata.metadata().as_ref().and_then(|map| map.get(KEY)).ok_or(CheckpointError::NoState)?;
    let header: Header = serde_json::from_str(json).map_err(|_| CheckpointError::NoState)?;
    let tensors = SafeTensors::deserialize(bytes)?;
    let mut tracks = Vec::with_capacity(header.tracks.len());
    for (i, track) in header.tracks.into_iter().enumerate() {
        let mut memory = Memory::default();
        track.numbers.iter().for_each(|(name, &bits)| memory.set_number(name, f64::from_bits(bits)));
        for name in &track.vectors {
            memory.set_vector(name, vector(&tensors, &format!("track-{i}.{name}"))?);
        }
        tracks.push(TrackState { params: vector(&tensors, &format!("track-{i}"))?, memory });
    }
    share_equal(&mut tracks);
    Ok(State { seed: header.seed, round: header.round, tracks })
}

fn vector(tensors: &SafeTensors<'_>, name: &str) -> Result<Params, CheckpointError> {
    let tensor = tensors.tensor(name)?;
    if tensor.dtype() != Dtype::F32 || tensor.shape().len() != 1 {
        return Err(CheckpointError::Tensor { name: name.to_owned() });
    }
    let entries = tensor.data().chunks_exact(4);
    Ok(entries.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect::<Vec<f32>>().into())
}

/// Tracks with equal parameters share them in memory, as they did when the state was written: engines do the
/// work of one.
fn share_equal(tracks: &mut [TrackState]) {
    for i in 1..tracks.len() {
        if let Some(j) = (0..i).find(|&j| tracks[j].params == tracks[i].params) {
            tracks[i].params = tracks[j].params.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let track = |entry: f32, eta: Option<f64>| {
            let mut memory = Memory::default();
            if let Some(eta) = eta {
                memory.set_number("eta", eta);
                memory.set_number("range.upper", f64::INFINITY);
                memory.set_vector("moment", vec![entry; 2].into());
            }
            TrackState { params: vec![entry, -0.0, f32::MIN_POSITIVE / 2.0].into(), memory }
        };
        State {
            seed: 7,
            round: 50,
            tracks: vec![track(1.0, None), track(2.0, Some(0.1 + 0.2)), track(1.0, None)],
        }
    }

    #[test]
    fn a_state_survives_to_the_bit() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("checkpoint")).unwrap();
        write(folder.path(), &state()).unwrap();
        let read = read(folder.path(), 7).unwrap().unwrap();
        assert_eq!(read, state());
        assert!(read.tracks[0].params.is_same(&read.tracks[2].params));
    }

    #[test]
    fn equal_states_are_equal_bytes() {
        assert_eq!(encode(&state()).unwrap(), encode(&state()).unwrap());
    }

    #[test]
    fn a_truncated_or_altered_checkpoint_is_refused() {
        let bytes = encode(&state()).unwrap();
        for cut in [0, 4, 8, 20, bytes.len() - 1] {
            assert!(decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let mut huge = bytes;
        huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(decode(&huge).is_err());
    }
}
