//! Documents that are damaged in the store: each is replaced once, whoever needs it.

use std::sync::Arc;

use futures::future::join_all;
use tonic::Status;

use super::super::ContainerdImageStore;
use super::super::test_store::store_over;
use super::*;
use crate::client::model::ModelContainerd;

const DOCUMENT: &[u8] = b"{\"schemaVersion\":2}";

/// A document that is stored, and the store that writes it again.
struct StoredDocument {
    model: ModelContainerd,
    store: ContainerdImageStore,
    repairs: BlobRepairs,
    digest: Digest,
}

impl StoredDocument {
    fn new() -> Self {
        let model = ModelContainerd::default();
        let digest = model.store().add_blob(DOCUMENT);
        let label = ("of another".to_owned(), "client".to_owned());
        model
            .store()
            .blobs
            .get_mut(&digest.to_string())
            .unwrap()
            .extend([label]);
        Self {
            store: store_over(&model),
            repairs: BlobRepairs::default(),
            model,
            digest,
        }
    }

    /// Puts another file in the place of the document's; `None` removes it.
    fn damage(&self, file: Option<&'static [u8]>) {
        let mut store = self.model.store();
        match file {
            Some(bytes) => drop(
                store
                    .files
                    .insert(self.digest.to_string(), Bytes::from_static(bytes)),
            ),
            None => drop(store.files.remove(&self.digest.to_string())),
        }
    }

    async fn write(&self) -> Result<()> {
        self.write_with(Labels::from([("ours".to_owned(), "yes".to_owned())]))
            .await
    }

    async fn write_with(&self, labels: Labels) -> Result<()> {
        let lease = self.store.leases.create("test").await?;
        let client = lease.client()?;
        let size = u64::try_from(DOCUMENT.len()).unwrap();
        let descriptor = Descriptor::new("x", self.digest.clone(), size);
        let to = (&client, &lease);
        self.repairs
            .store_document(
                to,
                "manifest",
                &descriptor,
                Bytes::from_static(DOCUMENT),
                labels,
            )
            .await
    }

    #[track_caller]
    fn assert_whole(&self) {
        let store = self.model.store();
        let digest = self.digest.to_string();
        assert_eq!(store.files[&digest], DOCUMENT);
        assert_eq!(store.blobs[&digest].len(), 2, "{:?}", store.blobs[&digest]);
    }
}

#[tokio::test]
async fn damaged_document_is_replaced_and_keeps_its_labels() {
    for file in [
        Some(&b""[..]),
        Some(&[0; DOCUMENT.len()][..]),
        Some(&DOCUMENT[..5]),
        None,
    ] {
        let document = StoredDocument::new();
        document.damage(file);
        document
            .write()
            .await
            .unwrap_or_else(|error| panic!("{file:?}: {}", error.report()));
        document.assert_whole();
        assert_eq!(document.model.calls("Content/Delete").len(), 1, "{file:?}");
        document.write().await.unwrap();
        assert_eq!(
            document.model.calls("Content/Delete").len(),
            1,
            "it is whole now"
        );
    }
}

#[tokio::test]
async fn intact_blobs_that_a_damaged_document_refers_to_stay() {
    let document = StoredDocument::new();
    let [named, named_by_another, garbage] =
        ["layer", "manifest", "garbage"].map(|text| document.model.store().add_blob(text));
    let reference =
        |name: &str, digest: &Digest| (format!("{CONTENT_REFERENCE}.{name}"), digest.to_string());
    let nested = document.model.store().add_blob("layer of the manifest");
    {
        let mut store = document.model.store();
        let labels = store.blobs.get_mut(&document.digest.to_string()).unwrap();
        labels.extend([reference("m.0", &named_by_another)]);
        let labels = store.blobs.get_mut(&named_by_another.to_string()).unwrap();
        labels.extend([reference("l.0", &nested)]);
    }
    let absent = Digest::sha256(b"not downloaded yet");
    document.damage(Some(b""));
    let labels = Labels::from([reference("l.0", &named), reference("l.1", &absent)]);
    document.write_with(labels).await.unwrap();
    assert_eq!(document.model.calls("Content/Delete").len(), 1);
    let store = document.model.store();
    for digest in [&document.digest, &named, &named_by_another, &nested] {
        let digest = digest.to_string();
        assert!(
            store.files.contains_key(&digest) && store.blobs.contains_key(&digest),
            "{digest}"
        );
    }
    assert!(
        !store.files.contains_key(&garbage.to_string()),
        "garbage was collected"
    );
    assert_eq!(
        store.blobs[&document.digest.to_string()].len(),
        4,
        "the labels of both"
    );
}

#[tokio::test]
async fn labels_of_a_fresh_document_are_written_once() {
    let document = StoredDocument::new();
    document.model.store().blobs.clear();
    document.write().await.unwrap();
    assert!(document.model.calls("Content/Update").is_empty());
    assert!(document.model.calls("Content/Read").is_empty());
    assert_eq!(
        document.model.store().blobs[&document.digest.to_string()].len(),
        1
    );
    document.write().await.unwrap();
    assert_eq!(document.model.calls("Content/Update").len(), 1);
}

#[tokio::test]
async fn sixteen_pulls_at_once_replace_a_document_once() {
    let document = Arc::new(StoredDocument::new());
    document.damage(Some(b""));
    let writes = join_all((0..16).map(|_| {
        let document = Arc::clone(&document);
        tokio::spawn(async move { document.write().await })
    }));
    for write in writes.await {
        write.unwrap().unwrap();
    }
    document.assert_whole();
    assert_eq!(document.model.calls("Content/Delete").len(), 1);
}

#[tokio::test]
async fn document_that_cannot_be_read_now_is_left_alone() {
    let document = StoredDocument::new();
    for status in [
        Status::unavailable("away"),
        Status::cancelled("h2 protocol error"),
    ] {
        document.model.refuse("Content/Read", Some(status));
        assert!(is_unanswered(&document.write().await.unwrap_err()));
    }
    document.model.refuse(
        "Content/Read",
        Some(Status::unimplemented("never heard of it")),
    );
    assert_eq!(
        document.write().await.unwrap_err().kind(),
        ErrorKind::Unimplemented
    );
    assert!(document.model.calls("Content/Delete").is_empty());
}

#[tokio::test]
async fn document_that_another_namespace_has_too_is_tried_once() {
    let document = StoredDocument::new();
    document.damage(Some(b"x"));
    document
        .model
        .store()
        .elsewhere
        .insert(document.digest.to_string());
    let error = document.write().await.unwrap_err();
    assert!(
        error.report().contains("another namespace"),
        "{}",
        error.report()
    );
    assert_eq!(document.model.calls("Content/Delete").len(), 1);
}

#[tokio::test]
async fn what_is_unreadable_is_told_from_what_is_not_there() {
    let document = StoredDocument::new();
    let client = document.model.client();
    let absent = Digest::sha256(b"absent");
    assert!(matches!(
        read(&client, &absent).await,
        Err(ReadFailure::Absent(_))
    ));
    assert_eq!(read(&client, &document.digest).await.unwrap(), DOCUMENT);
    document.model.refuse(
        "Content/Read",
        Some(Status::unknown("read /blob: input/output error")),
    );
    assert!(matches!(
        read(&client, &document.digest).await,
        Err(ReadFailure::Damaged(_))
    ));
    document.model.refuse("Content/Read", None);
    document.damage(None);
    assert!(matches!(
        read(&client, &document.digest).await,
        Err(ReadFailure::Damaged(_))
    ));
}
