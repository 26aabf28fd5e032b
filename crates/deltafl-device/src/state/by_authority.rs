//! A file with a few numbers for each authority.
//!
//! ```text
//! magic · for each authority: its key, N numbers u64 · BLAKE3
//! ```
//!
//! A device changes an entry on disk before it acts on the change, so that a crash does not undo
//! it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{StateError, io_error, replace};

/// The public key of an authority.
pub(super) type AuthorityKey = [u8; 32];

/// The entry of an authority: `N` numbers.
pub(super) trait Entry<const N: usize>: Copy + Default {
    /// The first bytes of a file of such entries.
    const MAGIC: [u8; 8];

    /// Returns the numbers of the entry.
    fn to_numbers(self) -> [u64; N];

    /// Creates an entry from its numbers.
    fn from_numbers(numbers: [u64; N]) -> Self;
}

/// The entries of all authorities, on disk or in memory.
#[derive(Debug, Default)]
pub(super) struct ByAuthority<E, const N: usize> {
    path: Option<PathBuf>,
    entries: BTreeMap<AuthorityKey, E>,
}

impl<E: Entry<N>, const N: usize> ByAuthority<E, N> {
    /// Opens a file. A missing file has no entries.
    pub(super) fn open(path: &Path) -> Result<Self, StateError> {
        let entries = match fs::read(path) {
            Ok(bytes) => parse(&bytes).ok_or_else(|| StateError::Damaged { path: path.to_owned() })?,
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(io_error(path)(source)),
        };
        Ok(Self { path: Some(path.to_owned()), entries })
    }

    /// Returns the entry of an authority; the default one if there is none.
    pub(super) fn get(&self, authority: &AuthorityKey) -> E {
        self.entries.get(authority).copied().unwrap_or_default()
    }

    /// Returns all entries.
    pub(super) fn entries(&self) -> &BTreeMap<AuthorityKey, E> {
        &self.entries
    }

    /// Returns all entries.
    pub(super) fn into_entries(self) -> BTreeMap<AuthorityKey, E> {
        self.entries
    }

    /// Returns `true` if no authority has an entry.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Replaces the entry of an authority. It is on disk when this returns.
    pub(super) fn set(&mut self, authority: AuthorityKey, entry: E) -> Result<(), StateError> {
        self.entries.insert(authority, entry);
        self.store()
    }

    /// Writes the file, if there is one.
    pub(super) fn store(&self) -> Result<(), StateError> {
        match &self.path {
            Some(path) => replace(path, &to_bytes(&self.entries)),
            None => Ok(()),
        }
    }
}

fn to_bytes<E: Entry<N>, const N: usize>(entries: &BTreeMap<AuthorityKey, E>) -> Vec<u8> {
    let mut bytes = E::MAGIC.to_vec();
    for (authority, entry) in entries {
        bytes.extend_from_slice(authority);
        for number in entry.to_numbers() {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    bytes
}

fn parse<E: Entry<N>, const N: usize>(bytes: &[u8]) -> Option<BTreeMap<AuthorityKey, E>> {
    let (body, hash) = bytes.split_last_chunk::<32>()?;
    if blake3::hash(body) != blake3::Hash::from_bytes(*hash) {
        return None;
    }
    let entries = body.strip_prefix(&E::MAGIC)?.chunks(32 + 8 * N);
    entries
        .map(|entry| {
            let (authority, numbers) = entry.split_first_chunk::<32>()?;
            let (numbers, _) = numbers.as_chunks::<8>();
            let numbers: [[u8; 8]; N] = numbers.try_into().ok()?;
            Some((*authority, E::from_numbers(numbers.map(u64::from_le_bytes))))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Pair(u64, u64);

    impl Entry<2> for Pair {
        const MAGIC: [u8; 8] = *b"a-pair-1";

        fn to_numbers(self) -> [u64; 2] {
            [self.0, self.1]
        }

        fn from_numbers([a, b]: [u64; 2]) -> Self {
            Self(a, b)
        }
    }

    #[test]
    fn entries_survive_and_a_damaged_file_is_not_taken_for_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pairs");
        let mut pairs = ByAuthority::<Pair, 2>::open(&path).unwrap();
        pairs.set([7; 32], Pair(1, 2)).unwrap();
        pairs.set([8; 32], Pair(3, 4)).unwrap();
        pairs.set([7; 32], Pair(5, u64::MAX)).unwrap();
        let pairs = ByAuthority::<Pair, 2>::open(&path).unwrap();
        assert_eq!(pairs.get(&[7; 32]), Pair(5, u64::MAX));
        assert_eq!(pairs.get(&[9; 32]), Pair::default());
        assert_eq!(pairs.into_entries().len(), 2);
        let bytes = fs::read(&path).unwrap();
        for cut in 0..bytes.len() {
            fs::write(&path, &bytes[..cut]).unwrap();
            assert!(matches!(ByAuthority::<Pair, 2>::open(&path), Err(StateError::Damaged { .. })), "{cut}");
        }
        // A whole number of bytes of another length, with a valid hash.
        let mut body = bytes[..bytes.len() - 32 - 8].to_vec();
        body.extend_from_slice(blake3::hash(&body).as_bytes());
        fs::write(&path, body).unwrap();
        assert!(matches!(ByAuthority::<Pair, 2>::open(&path), Err(StateError::Damaged { .. })));
    }
}
