//! Checkpoints: the state of one seed as a safetensors file of named tensors.
//!
//! ```text
//! track-0.fc.weight            the params of a track, by PyTorch's names and in its layouts
//! memory-0.NAME                a vector that the track's algorithm remembers
//! devices-0.NAME               a vector that devices remember, one row per device
//! ```
//!
//! The tensors with the prefix `track-0.` are the state dict of the model. JSON metadata contains
//! the rest of the state. This is the only form of a state: MPI ranks exchange these bytes too.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{RunFolderError, atomic, io_error};
use crate::tensor_file::{TensorFileError, read_tensors, write_tensors};
use deltafl::exchange::TrainIndex;
use deltafl::memory::{AlgorithmState, DeviceMemories};
use deltafl::model::{InvalidState, NamedTensor, Tensor, flat_params, named_tensors};
use deltafl::training::{State, TrackState};

/// The reason why a file is not a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file of tensors is incomplete.
    #[error("it is damaged or truncated")]
    Damaged(#[from] TensorFileError),
    /// The metadata is missing or malformed, or names tensors that do not exist.
    #[error("it contains no state of a run")]
    NoState,
    /// The params of a track do not have the shapes that the file names.
    #[error("the params of track {track} are incomplete")]
    Params {
        /// Its index.
        track: usize,
        /// The error in the tensors.
        source: InvalidState,
    },
    /// The number of tracks or parameters differs.
    #[error("its tracks or parameters are not those of the experiment")]
    OtherModel,
}

/// A state without its vectors.
#[derive(Serialize, Deserialize)]
struct CheckpointHeader {
    seed: u64,
    round: u64,
    tensors: Vec<Tensor>,
    tracks: Vec<TrackHeader>,
}

#[derive(Serialize, Deserialize)]
struct TrackHeader {
    /// The numbers of its memory, as bits: JSON has no infinity.
    numbers: BTreeMap<String, u64>,
    /// The names of the vectors of its memory.
    vectors: Vec<String>,
    /// The numbers of its devices, by name: devices and bits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    device_numbers: BTreeMap<String, Vec<(u32, u64)>>,
    /// The vectors of its devices, by name: devices and lengths, in the order of the rows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    device_vectors: BTreeMap<String, Vec<(u32, usize)>>,
}

/// Returns the path of the checkpoint of a seed.
pub(super) fn path(folder: &Path, seed: u64) -> PathBuf {
    folder.join("checkpoint").join(format!("seed-{seed}.safetensors"))
}

/// Replaces the checkpoint of the state's seed.
pub(super) fn write(folder: &Path, state: &State) -> Result<(), RunFolderError> {
    let path = path(folder, state.seed);
    let bytes = encode(state).map_err(|source| RunFolderError::Checkpoint { path: path.clone(), source })?;
    atomic::write(&path, &bytes).map_err(io_error(&path))
}

/// Returns the number of rounds in the checkpoint of a seed; 0 if there is none.
pub(super) fn rounds_done(folder: &Path, seed: u64) -> Result<u64, RunFolderError> {
    Ok(read(folder, seed)?.map_or(0, |state| state.round))
}

/// Returns the checkpoint of a seed; `None` if there is none.
pub(super) fn read(folder: &Path, seed: u64) -> Result<Option<State>, RunFolderError> {
    let path = path(folder, seed);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error(&path)(e)),
    };
    decode(&bytes).map(Some).map_err(|source| RunFolderError::Checkpoint { path, source })
}

/// Returns the bytes of the checkpoint of a state. Equal states give equal bytes.
pub fn encode(state: &State) -> Result<Vec<u8>, CheckpointError> {
    let mut tensors = Vec::new();
    let mut tracks = Vec::with_capacity(state.tracks.len());
    for (i, track) in state.tracks.iter().enumerate() {
        if track.params.len() != state.tensors.iter().map(Tensor::len).sum::<usize>() {
            return Err(CheckpointError::OtherModel);
        }
        for tensor in named_tensors(&state.tensors, track.params.as_slice()) {
            tensors.push(NamedTensor { name: format!("track-{i}.{}", tensor.name), ..tensor });
        }
        for (name, vector) in track.memory.vectors() {
            tensors.push(NamedTensor {
                name: format!("memory-{i}.{name}"),
                shape: vec![vector.len()],
                values: vector.as_slice().to_vec(),
            });
        }
        tracks.push(header_of(i, track, &mut tensors));
    }
    let header =
        CheckpointHeader { seed: state.seed, round: state.round, tensors: state.tensors.to_vec(), tracks };
    let json = serde_json::to_string(&header).map_err(|_| CheckpointError::NoState)?;
    Ok(write_tensors(&tensors, Some(&json))?)
}

/// Returns the header of a track, and adds the vectors of its devices to the tensors, name by name.
fn header_of(index: usize, track: &TrackState, tensors: &mut Vec<NamedTensor>) -> TrackHeader {
    let mut device_numbers: BTreeMap<String, Vec<(u32, u64)>> = BTreeMap::new();
    let mut device_vectors: BTreeMap<String, Vec<(u32, usize)>> = BTreeMap::new();
    let mut values: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for (TrainIndex(device), memory) in track.devices.iter() {
        for (name, number) in memory.numbers() {
            device_numbers.entry(name.to_owned()).or_default().push((device, number.to_bits()));
        }
        for (name, vector) in memory.vectors() {
            device_vectors.entry(name.to_owned()).or_default().push((device, vector.len()));
            values.entry(name.to_owned()).or_default().extend_from_slice(vector.as_slice());
        }
    }
    for (name, values) in values {
        let rows = &device_vectors[&name];
        let equal = rows.iter().all(|(_, len)| *len == rows[0].1);
        let shape = if equal { vec![rows.len(), rows[0].1] } else { vec![values.len()] };
        tensors.push(NamedTensor { name: format!("devices-{index}.{name}"), shape, values });
    }
    TrackHeader {
        numbers: track.memory.numbers().map(|(name, number)| (name.to_owned(), number.to_bits())).collect(),
        vectors: track.memory.vectors().map(|(name, _)| name.to_owned()).collect(),
        device_numbers,
        device_vectors,
    }
}

/// Returns the state in the bytes of a checkpoint.
pub fn decode(bytes: &[u8]) -> Result<State, CheckpointError> {
    let (tensors, json) = read_tensors(bytes)?;
    let header: CheckpointHeader =
        serde_json::from_str(&json.ok_or(CheckpointError::NoState)?).map_err(|_| CheckpointError::NoState)?;
    let mut by_name: HashMap<String, NamedTensor> =
        tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let mut tracks = Vec::with_capacity(header.tracks.len());
    for (i, track) in header.tracks.iter().enumerate() {
        let mut take = |kind: &str, name: &str| by_name.remove(&format!("{kind}-{i}.{name}"));
        let named = header.tensors.iter().filter_map(|tensor| {
            take("track", &tensor.name).map(|found| NamedTensor { name: tensor.name.clone(), ..found })
        });
        let params = flat_params(&header.tensors, &named.collect::<Vec<_>>())
            .map_err(|source| CheckpointError::Params { track: i, source })?;
        let mut memory = AlgorithmState::default();
        track.numbers.iter().for_each(|(name, &bits)| memory.set_number(name, f64::from_bits(bits)));
        for name in &track.vectors {
            let vector = take("memory", name).ok_or(CheckpointError::NoState)?;
            memory.set_vector(name, vector.values.into());
        }
        let devices = devices_of(track, |name| take("devices", name))?;
        tracks.push(TrackState { params: params.into(), memory, devices });
    }
    share_equal(&mut tracks);
    Ok(State { seed: header.seed, round: header.round, tensors: header.tensors.into(), tracks })
}

/// Returns the memories of the devices of a track.
fn devices_of(
    track: &TrackHeader,
    mut take: impl FnMut(&str) -> Option<NamedTensor>,
) -> Result<DeviceMemories, CheckpointError> {
    let mut memories: BTreeMap<u32, AlgorithmState> = BTreeMap::new();
    for (name, numbers) in &track.device_numbers {
        for &(device, bits) in numbers {
            memories.entry(device).or_default().set_number(name, f64::from_bits(bits));
        }
    }
    for (name, rows) in &track.device_vectors {
        let values = take(name).ok_or(CheckpointError::NoState)?.values;
        let mut rest = values.as_slice();
        for &(device, len) in rows {
            let (row, behind) = rest.split_at_checked(len).ok_or(CheckpointError::NoState)?;
            rest = behind;
            memories.entry(device).or_default().set_vector(name, row.to_vec().into());
        }
        if !rest.is_empty() {
            return Err(CheckpointError::NoState);
        }
    }
    let mut devices = DeviceMemories::default();
    memories.into_iter().for_each(|(device, memory)| devices.set(TrainIndex(device), memory));
    Ok(devices)
}

/// Tracks with equal parameters share them in memory, as before the state was written, so that
/// engines compute them once.
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
            let mut memory = AlgorithmState::default();
            if let Some(eta) = eta {
                memory.set_number("eta", eta);
                memory.set_number("range.upper", f64::INFINITY);
                memory.set_vector("moment", vec![entry; 2].into());
            }
            TrackState { memory, ..TrackState::new(vec![entry, -0.0, f32::MIN_POSITIVE / 2.0].into()) }
        };
        let mut remembered = AlgorithmState::default();
        remembered.set_vector("control", vec![0.5, f32::NAN].into());
        let mut devices = DeviceMemories::default();
        devices.set(TrainIndex(3), remembered.clone());
        remembered.set_vector("control", vec![1.5, 2.5].into());
        remembered.set_number("seen", 4.0);
        devices.set(TrainIndex(11), remembered);
        let mut first = track(1.0, None);
        first.devices = devices;
        State {
            seed: 7,
            round: 50,
            tensors: [Tensor::transposed("fc.weight", [2, 1]), Tensor::new("fc.bias", &[1])].into(),
            tracks: vec![first, track(2.0, Some(0.1 + 0.2)), track(1.0, None)],
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
    fn tensors_have_the_names_and_shapes_of_the_model() {
        let (tensors, _) = read_tensors(&encode(&state()).unwrap()).unwrap();
        let mut shapes: Vec<(&str, &[usize])> =
            tensors.iter().map(|tensor| (tensor.name.as_str(), &tensor.shape[..])).collect();
        shapes.sort_unstable();
        let expected: [(&str, &[usize]); 8] = [
            ("devices-0.control", &[2, 2]),
            ("memory-1.moment", &[2]),
            ("track-0.fc.bias", &[1]),
            ("track-0.fc.weight", &[2, 1]),
            ("track-1.fc.bias", &[1]),
            ("track-1.fc.weight", &[2, 1]),
            ("track-2.fc.bias", &[1]),
            ("track-2.fc.weight", &[2, 1]),
        ];
        assert_eq!(shapes, expected);
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
