//! Blobs by the hash of their content.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload};

use super::retry::patiently;
use super::{Store, StoreError};

/// BLAKE3 of a blob, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlobHash(String);

impl BlobHash {
    /// Computes the hash of some bytes.
    pub fn for_bytes(bytes: &[u8]) -> Self {
        Self(blake3::hash(bytes).to_hex().to_string())
    }

    /// Returns the hash as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses a hash. Returns `None` unless the text is 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (text.len() == 64 && text.bytes().all(digit)).then(|| Self(text.to_owned()))
    }

    /// Returns the path of a blob. Two levels keep folders small.
    fn path(&self) -> ObjectPath {
        ObjectPath::from(format!("{}/{}", &self.0[..2], self.0))
    }
}

impl fmt::Display for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The blob storage. It is opened on first use, so that enrolment alone creates no folder.
#[derive(Debug)]
pub(super) struct BlobStorage {
    place: String,
    opened: OnceLock<Arc<dyn ObjectStore>>,
}

impl BlobStorage {
    pub(super) fn new(place: &str) -> Self {
        Self { place: place.to_owned(), opened: OnceLock::new() }
    }

    fn store(&self) -> Result<&dyn ObjectStore, StoreError> {
        if let Some(store) = self.opened.get() {
            return Ok(&**store);
        }
        let store = open(&self.place)?;
        Ok(&**self.opened.get_or_init(|| store))
    }

    async fn put(&self, hash: &BlobHash, bytes: &Bytes) -> Result<(), StoreError> {
        self.store()?.put(&hash.path(), PutPayload::from_bytes(bytes.clone())).await?;
        Ok(())
    }

    async fn get(&self, hash: &BlobHash) -> Result<Bytes, StoreError> {
        let bytes = self.store()?.get(&hash.path()).await?.bytes().await?;
        if BlobHash::for_bytes(&bytes) == *hash {
            Ok(bytes)
        } else {
            Err(StoreError::Damaged { what: "blob" })
        }
    }

    async fn delete(&self, hash: &BlobHash) -> Result<(), StoreError> {
        match self.store()?.delete(&hash.path()).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn open(place: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
    if let Some(url) = place.strip_prefix("s3://") {
        return s3(url);
    }
    std::fs::create_dir_all(place).map_err(|source| StoreError::Io { path: place.into(), source })?;
    // A blob is on disk before a transaction refers to it.
    Ok(Arc::new(LocalFileSystem::new_with_prefix(place)?.with_fsync(true)))
}

#[cfg(feature = "s3")]
fn s3(url: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
    use object_store::aws::AmazonS3Builder;
    use object_store::prefix::PrefixStore;
    let (bucket, prefix) = url.split_once('/').unwrap_or((url, ""));
    let store = AmazonS3Builder::from_env().with_bucket_name(bucket).build()?;
    Ok(Arc::new(PrefixStore::new(store, prefix)))
}

#[cfg(not(feature = "s3"))]
fn s3(url: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
    Err(StoreError::Place { what: "blobs in a build without the feature s3", place: format!("s3://{url}") })
}

impl Store {
    /// Stores a blob.
    pub async fn put_blob(&self, bytes: &Bytes) -> Result<BlobHash, StoreError> {
        let hash = BlobHash::for_bytes(bytes);
        patiently!(self, self.blobs().put(&hash, bytes))?;
        Ok(hash)
    }

    /// Returns a blob after checking it against its hash.
    pub async fn blob(&self, hash: &BlobHash) -> Result<Bytes, StoreError> {
        patiently!(self, self.blobs().get(hash))
    }

    pub(super) async fn delete_blob(&self, hash: &BlobHash) -> Result<(), StoreError> {
        self.blobs().delete(hash).await
    }
}
