//! Compilation of kernels to machine code, and its cache on disk.
//!
//! The name of a cache file is a hash of everything that determines its contents: the source with
//! its includes, the options and the architecture. The file starts with a hash of the rest, so that
//! a truncated or modified file is recompiled.

#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char};
use std::io::Write;
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{Ptx, result, sys};

use crate::GpuError;

/// The headers that sources include.
const HEADERS: [(&str, &str); 29] = [
    ("common.cuh", include_str!("kernels/common.cuh")),
    ("norm.cuh", include_str!("kernels/norm.cuh")),
    ("split.cuh", include_str!("kernels/split.cuh")),
    ("groups.cuh", include_str!("kernels/groups.cuh")),
    ("cluster.cuh", include_str!("kernels/cluster.cuh")),
    ("conv_net/layout.cuh", include_str!("kernels/conv_net/layout.cuh")),
    ("conv_net/working.cuh", include_str!("kernels/conv_net/working.cuh")),
    ("conv_net/forward.cuh", include_str!("kernels/conv_net/forward.cuh")),
    ("conv_net/full.cuh", include_str!("kernels/conv_net/full.cuh")),
    ("conv_net/backward.cuh", include_str!("kernels/conv_net/backward.cuh")),
    ("gru/layout.cuh", include_str!("kernels/gru/layout.cuh")),
    ("gru/computing.cuh", include_str!("kernels/gru/computing.cuh")),
    ("gru/forward.cuh", include_str!("kernels/gru/forward.cuh")),
    ("gru/backward.cuh", include_str!("kernels/gru/backward.cuh")),
    ("gru/descend.cuh", include_str!("kernels/gru/descend.cuh")),
    ("gru/beside.cuh", include_str!("kernels/gru/beside.cuh")),
    ("general/wave.cuh", include_str!("kernels/general/wave.cuh")),
    ("general/product.cuh", include_str!("kernels/general/product.cuh")),
    ("general/dense.cuh", include_str!("kernels/general/dense.cuh")),
    ("general/conv.cuh", include_str!("kernels/general/conv.cuh")),
    ("general/slab.cuh", include_str!("kernels/general/slab.cuh")),
    ("general/fold.cuh", include_str!("kernels/general/fold.cuh")),
    ("general/halves.cuh", include_str!("kernels/general/halves.cuh")),
    ("general/recurrent.cuh", include_str!("kernels/general/recurrent.cuh")),
    ("general/resident.cuh", include_str!("kernels/general/resident.cuh")),
    ("general/table.cuh", include_str!("kernels/general/table.cuh")),
    ("general/maps.cuh", include_str!("kernels/general/maps.cuh")),
    ("general/head.cuh", include_str!("kernels/general/head.cuh")),
    ("general/params.cuh", include_str!("kernels/general/params.cuh")),
];

/// A source and the sizes for which it is compiled.
#[derive(Clone, Debug)]
pub(crate) struct KernelSource {
    pub(crate) name: &'static str,
    pub(crate) text: Cow<'static, str>,
    /// The macros.
    pub(crate) sizes: Vec<(&'static str, usize)>,
}

/// The folder of compiled kernels. By default there is none.
#[derive(Clone, Debug, Default)]
pub struct KernelCache {
    folder: Option<PathBuf>,
}

impl KernelCache {
    /// Creates a cache in a folder. The folder is created on first use.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// Returns the machine code of a source.
    pub(crate) fn image(&self, source: &KernelSource, capability: (i32, i32)) -> Result<Ptx, GpuError> {
        let options = options(source, capability);
        let file = self.folder.as_ref().map(|folder| folder.join(key(&source.full_text(), &options)));
        if let Some(image) = file.as_deref().and_then(read) {
            return Ok(Ptx::from_binary(image));
        }
        let image = compile(source, &options)?;
        if let Some(file) = file {
            // A cache that cannot be written costs time but does not fail the run.
            let _ = write(&file, &image);
        }
        Ok(Ptx::from_binary(image))
    }
}

impl KernelSource {
    /// Returns the text with its headers inserted.
    fn full_text(&self) -> String {
        let mut text = self.text.clone().into_owned();
        for (name, header) in HEADERS.iter().rev() {
            text = text.replacen(&format!("#include \"{name}\""), header, 1);
        }
        text
    }
}

/// Returns the options of NVRTC.
fn options(source: &KernelSource, (major, minor): (i32, i32)) -> Vec<String> {
    // Instructions specific to Hopper require the suffix.
    let letter = if (major, minor) == (9, 0) { "a" } else { "" };
    let mut options = vec![format!("--gpu-architecture=sm_{major}{minor}{letter}"), "--std=c++17".to_owned()];
    options.extend(source.sizes.iter().map(|(name, value)| format!("-D{name}={value}")));
    options
}

/// Returns the name of a cache file.
fn key(text: &str, options: &[String]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in options.iter().map(String::as_str).chain([text]) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    format!("{}.cubin", hasher.finalize().to_hex())
}

fn read(file: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(file).ok()?;
    let (hash, image) = bytes.split_at_checked(blake3::OUT_LEN)?;
    (blake3::hash(image).as_bytes() == hash).then(|| image.to_vec())
}

fn write(file: &Path, image: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or_else(|| Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
    temporary.write_all(blake3::hash(image).as_bytes())?;
    temporary.write_all(image)?;
    temporary.persist(file)?;
    Ok(())
}

/// Compiles a source to machine code.
fn compile(source: &KernelSource, options: &[String]) -> Result<Vec<u8>, GpuError> {
    // SAFETY: searches for a library by name and closes it.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuError::NoCompiler { kernels: source.name });
    }
    let refused = |log: String| GpuError::Compile { kernels: source.name, log };
    let text = CString::new(source.full_text()).map_err(|error| refused(error.to_string()))?;
    let name = CString::new(source.name).map_err(|error| refused(error.to_string()))?;
    let program =
        Program(result::create_program(&text, Some(&name)).map_err(|error| refused(format!("{error:?}")))?);
    // SAFETY: the program is valid until it is dropped.
    match unsafe { result::compile_program(program.0, options) } {
        Ok(()) => program.image().map_err(|error| refused(format!("{error:?}"))),
        Err(_) => Err(refused(program.log())),
    }
}

/// A program of NVRTC.
struct Program(sys::nvrtcProgram);

impl Program {
    fn image(&self) -> Result<Vec<u8>, result::NvrtcError> {
        let mut len = 0;
        // SAFETY: the program is valid, and the vector has the length that NVRTC reports.
        unsafe {
            sys::nvrtcGetCUBINSize(self.0, &raw mut len).result()?;
            let mut image = vec![0u8; len];
            sys::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast::<c_char>()).result()?;
            Ok(image)
        }
    }

    fn log(&self) -> String {
        // SAFETY: the program is valid, and the log is zero-terminated.
        unsafe {
            result::get_program_log(self.0).map_or_else(
                |error| format!("{error:?}"),
                |log| CStr::from_ptr(log.as_ptr()).to_string_lossy().into_owned(),
            )
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: nothing uses the program after this.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::every_source;

    /// Returns true if NVRTC can be loaded. Otherwise prints that the test is skipped.
    fn has_compiler() -> bool {
        // SAFETY: searches for a library by name and closes it.
        let present = unsafe { sys::is_culib_present() };
        if !present {
            eprintln!("skipped: this machine has no NVRTC");
        }
        present
    }

    #[test]
    fn every_source_compiles() {
        if has_compiler() {
            for source in every_source() {
                if let Err(error) = compile(&source, &options(&source, (9, 0))) {
                    panic!("{:?}: {error}", source.sizes);
                }
            }
        }
    }

    #[test]
    fn headers_are_inserted_at_their_include() {
        for source in every_source() {
            let text = source.full_text();
            assert!(text.contains("struct Task") && !text.contains("#include"), "{}", source.name);
        }
    }

    #[test]
    fn source_options_and_architecture_determine_the_key() {
        let source = KernelSource { name: "a", text: "x".into(), sizes: vec![("N", 1)] };
        let base = key("x", &options(&source, (9, 0)));
        assert_eq!(base, key("x", &options(&source, (9, 0))));
        assert_ne!(base, key("y", &options(&source, (9, 0))));
        assert_ne!(base, key("x", &options(&source, (10, 0))));
        assert_ne!(base, key("x", &options(&KernelSource { sizes: vec![("N", 2)], ..source }, (9, 0))));
    }

    #[test]
    fn a_modified_cache_file_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a").join("k.cubin");
        write(&file, b"machine code").unwrap();
        assert_eq!(read(&file).unwrap(), b"machine code");
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(read(&file), None);
        std::fs::write(&file, b"short").unwrap();
        assert_eq!(read(&file), None);
    }
}
