//! The models of a run as files of other programs: ONNX, safetensors, and the format of
//! `torch.save`.

use std::io::{Cursor, Write as _};
use std::path::{Path, PathBuf};

use deltafl::algorithm::TrackLabel;
use deltafl::data::{Federation, InputKind};
use deltafl::kernel::Isa;
use deltafl::model::{NamedTensor, state_dict};
use deltafl_data::{run_folder, write_state_dict};
use zip::write::SimpleFileOptions;

use super::tensorboard::folder_name;
use super::{ExportError, ExportFormat, onnx};
use crate::error::write_file;
use crate::predict::TrainedModel;
use crate::session::RunError;

/// Writes a file per track, of the first seed.
pub(super) fn write(run: &Path, format: ExportFormat, out: &Path) -> Result<Vec<PathBuf>, ExportError> {
    let experiment = run_folder::read_experiment(run)?;
    let mut written = Vec::new();
    let labels = experiment.labels();
    for (track, label) in labels.iter().enumerate() {
        let model = TrainedModel::of_track(run, &experiment, track, None)?;
        // Frozen word vectors are part of the data, not of the run.
        let needs_vectors =
            matches!(model.contract.inputs, InputKind::Tokens { .. }) && model.contract.words.is_empty();
        let federation = match needs_vectors {
            true => experiment.data().load().map_err(RunError::from)?,
            false => model.contract.shape(),
        };
        let (extension, bytes) = encoded(format, &model, &federation)?;
        let same = |other: &&TrackLabel| (&other.algorithm, other.theta) == (&label.algorithm, label.theta);
        let name = match labels.iter().filter(same).count() {
            1 => format!("{}-theta-{}", label.algorithm, label.theta),
            _ => folder_name(&label.name),
        };
        let path = out.join(format!("{name}.{extension}"));
        write_file(&path, bytes)?;
        written.push(path);
    }
    Ok(written)
}

fn encoded(
    format: ExportFormat,
    model: &TrainedModel,
    federation: &Federation,
) -> Result<(&'static str, Vec<u8>), ExportError> {
    let built = model.spec.build(federation, Isa::detect()).map_err(RunError::from)?;
    if built.num_params() != model.params.len() {
        return Err(crate::predict::PredictError::OtherParams.into());
    }
    Ok(match format {
        ExportFormat::Onnx => {
            let kind = model.spec.name();
            let stack = model.spec.stack(federation).map_err(RunError::from)?;
            let (params, contract) = (&model.params, &model.contract);
            let bytes = onnx::encode(kind, stack.as_ref(), &*built, params, contract, federation);
            ("onnx", bytes.ok_or(ExportError::NoGraph { model: kind })?)
        }
        ExportFormat::Torch => ("pt", torch_file(&state_dict(&*built, &model.params))),
        _ => ("safetensors", write_state_dict(&*built, &model.params)),
    })
}

/// Encodes tensors as `torch.save` does: an archive with a pickled dictionary, and a file per
/// tensor.
fn torch_file(tensors: &[NamedTensor]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let mut add = |name: &str, bytes: &[u8]| {
        let written = archive.start_file(format!("model/{name}"), stored).map(|()| archive.write_all(bytes));
        debug_assert!(matches!(written, Ok(Ok(()))), "an archive in memory takes any file");
    };
    add("data.pkl", &pickled(tensors));
    add("byteorder", b"little");
    for (i, tensor) in tensors.iter().enumerate() {
        let bytes: Vec<u8> = tensor.values.iter().flat_map(|x| x.to_le_bytes()).collect();
        add(&format!("data/{i}"), &bytes);
    }
    add("version", b"3\n");
    archive.finish().map(Cursor::into_inner).unwrap_or_default()
}

/// Pickles `{name: tensor}` by protocol 2. A tensor is rebuilt from a stored file of floats.
fn pickled(tensors: &[NamedTensor]) -> Vec<u8> {
    let mut out = vec![0x80, 2, b'}', b'('];
    let text = |out: &mut Vec<u8>, text: &str| {
        out.push(b'X');
        out.extend((text.len() as u32).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let whole = |out: &mut Vec<u8>, number: usize| {
        out.push(b'J');
        out.extend((number as i32).to_le_bytes());
    };
    let tuple = |out: &mut Vec<u8>, numbers: &[usize]| {
        out.push(b'(');
        numbers.iter().for_each(|&number| whole(out, number));
        out.push(b't');
    };
    for (i, tensor) in tensors.iter().enumerate() {
        let strides: Vec<usize> =
            (0..tensor.shape.len()).map(|axis| tensor.shape[axis + 1..].iter().product()).collect();
        text(&mut out, &tensor.name);
        out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        text(&mut out, "storage");
        out.extend(b"ctorch\nFloatStorage\n");
        text(&mut out, &i.to_string());
        text(&mut out, "cpu");
        whole(&mut out, tensor.values.len());
        out.extend(b"tQ");
        whole(&mut out, 0);
        tuple(&mut out, &tensor.shape);
        tuple(&mut out, &strides);
        // requires_grad is false, and there are no hooks.
        out.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    }
    out.extend(b"u.");
    out
}
