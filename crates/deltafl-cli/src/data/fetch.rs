//! `deltafl data fetch`: downloads the paper's data sets from their publishers and imports them.
//!
//! ```text
//! OUT/downloads/   the downloaded files, and the SHA-256 of each
//! OUT/…            the imported federations
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use deltafl::data::DeviceSplit;
use deltafl_data::import::{self, ImportError, Imported, Target, sent140};
use miette::{IntoDiagnostic, Result, WrapErr};
use zip::ZipArchive;

use super::import::{EMNIST_MIN_EXAMPLES, SENT140_MIN_EXAMPLES, SHAKESPEARE_MIN_EXAMPLES};
use super::target::{import_error, report};
use crate::error::bad_input;

mod download;

use download::{Download, Trust};

/// Download one of the paper's data sets from its publisher and import it
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  deltafl data fetch shakespeare --out data/shakespeare

The command resumes an interrupted download. HTTPS_PROXY or ALL_PROXY sets a proxy. The publishers provide no
checksums: the SHA-256 of a file is recorded on the first download and verified from then on. --sha256 specifies it
in advance.")]
pub(crate) struct Args {
    /// The data set
    #[arg(value_enum)]
    name: DataSet,
    /// The folder for downloads and federations
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Expected SHA-256 as NAME=HEX for a file NAME; may be repeated
    #[arg(long, value_name = "NAME=HEX")]
    sha256: Vec<String>,
    /// Fetch the files from another location: URL/NAME
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// The paper's data sets.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum DataSet {
    /// NIST Special Database 19
    Emnist,
    /// Sentiment140 and GloVe's word vectors
    Sent140,
    /// The complete works of Shakespeare
    Shakespeare,
}

/// A file of a publisher.
struct Published {
    name: &'static str,
    url: &'static str,
}

impl DataSet {
    fn files(self) -> &'static [Published] {
        match self {
            Self::Emnist => &[
                Published {
                    name: "by_class.zip",
                    url: "https://s3.amazonaws.com/nist-srd/SD19/by_class.zip",
                },
                Published {
                    name: "by_write.zip",
                    url: "https://s3.amazonaws.com/nist-srd/SD19/by_write.zip",
                },
            ],
            Self::Sent140 => &[
                Published {
                    name: "trainingandtestdata.zip",
                    url: "https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
                },
                Published { name: "glove.6B.zip", url: "https://nlp.stanford.edu/data/glove.6B.zip" },
            ],
            // The archive used by LEAF. It may not result in the paper's 1089 roles (see
            // docs/src/how-to/data.md).
            Self::Shakespeare => &[Published {
                name: "1994-01-100.zip",
                url: "https://www.gutenberg.org/files/100/old/1994-01-100.zip",
            }],
        }
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    let downloads = args.out.join("downloads");
    fs::create_dir_all(&downloads).into_diagnostic().wrap_err_with(|| downloads.display().to_string())?;
    let pinned = pinned(&args)?;
    for file in args.name.files() {
        let url = match &args.mirror {
            Some(mirror) => format!("{}/{}", mirror.trim_end_matches('/'), file.name),
            None => file.url.to_owned(),
        };
        let download = Download { url, target: downloads.join(file.name), quiet: args.quiet };
        let pin = pinned.iter().find(|(name, _)| *name == file.name).map(|(_, hex)| (*hex).to_owned());
        let (hash, trust) = download.fetch(pin)?;
        let how = match trust {
            Trust::Pinned => "as requested",
            Trust::Recorded => "as recorded earlier",
            Trust::FirstUse => "recorded on first use, not verified",
        };
        println!("{}: SHA-256 {hash}, {how}", file.name);
    }
    for imported in import(args.name, &downloads, &args.out)? {
        report(&imported.manifest, &imported.out, false)?;
    }
    Ok(())
}

/// Parses the hashes of `--sha256`.
fn pinned(args: &Args) -> Result<Vec<(&str, &str)>> {
    let names: Vec<&str> = args.name.files().iter().map(|file| file.name).collect();
    args.sha256
        .iter()
        .map(|pin| match pin.split_once('=') {
            Some((name, hex)) if names.contains(&name) => Ok((name, hex)),
            _ => {
                let error = bad_input(format!("--sha256 {pin} does not name a file of this data set"));
                Err(error.help(format!("NAME=HEX with a NAME of: {}", names.join(", "))).into())
            }
        })
        .collect()
}

fn import(name: DataSet, downloads: &Path, out: &Path) -> Result<Vec<Imported>> {
    let target = |folder: &str, min_examples| Target {
        split: DeviceSplit { train: 1.0, min_examples, ..DeviceSplit::default() },
        ..Target::new(out.join(folder))
    };
    let imported: Result<Vec<Imported>, ImportError> = match name {
        DataSet::Emnist => {
            let (by_write, by_class) = (downloads.join("by_write.zip"), downloads.join("by_class.zip"));
            import::emnist::import(&by_write, &by_class, &target("federation", EMNIST_MIN_EXAMPLES))
                .map(|imported| vec![imported])
        }
        DataSet::Shakespeare => {
            let text = unpacked(downloads, "1994-01-100.zip", "100.txt")?;
            import::shakespeare::import(&text, &target("federation", SHAKESPEARE_MIN_EXAMPLES))
                .map(|imported| vec![imported])
        }
        DataSet::Sent140 => {
            let csv = "training.1600000.processed.noemoticon.csv";
            let tweets = unpacked(downloads, "trainingandtestdata.zip", csv)?;
            let vectors = unpacked(downloads, "glove.6B.zip", "glove.6B.50d.txt")?;
            let both = [
                ("tokens", sent140::TweetFeatures::Tokens),
                ("mean-vector", sent140::TweetFeatures::MeanVector),
            ];
            let one = |(folder, features)| {
                let options =
                    sent140::Options { vectors: vectors.clone(), features, lowercase: true, columns: None };
                sent140::import(
                    std::slice::from_ref(&tweets),
                    &options,
                    &target(folder, SENT140_MIN_EXAMPLES),
                )
            };
            both.into_iter().map(one).collect()
        }
    };
    imported.map_err(import_error)
}

/// Unpacks a member of a downloaded archive next to it.
fn unpacked(downloads: &Path, archive: &str, member: &str) -> Result<PathBuf> {
    let target = downloads.join(member);
    if target.exists() {
        return Ok(target);
    }
    let path = downloads.join(archive);
    let partial = downloads.join(format!("{member}.part"));
    let unpack = || -> io::Result<()> {
        let mut zip = ZipArchive::new(io::BufReader::new(File::open(&path)?)).map_err(io::Error::from)?;
        let mut source = zip.by_name(member).map_err(io::Error::from)?;
        let mut file = File::create(&partial)?;
        io::copy(&mut source, &mut file)?;
        file.sync_all()?;
        fs::rename(&partial, &target)
    };
    unpack().map_err(|error| bad_input(format!("{}, member {member:?}: {error}", path.display())))?;
    Ok(target)
}
