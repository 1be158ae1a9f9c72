//! Pulls of images that containerd does not have: its namespaces share content.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use switchyard_tests::host::random_bytes;
use switchyard_tests::image::{ImageBuilder, Layer, LayerBuilder, random_layer};
use tokio::time::{sleep, timeout};

use crate::failure::Failure;
use crate::pair::Pair;
use crate::processor;
use crate::row::{Goal, Row};
use crate::side::Side;
use crate::test_bed::TestBed;

/// Limit for the writes and removals that a pull leaves behind, before the next one.
const COOLDOWN_LIMIT: Duration = Duration::from_millis(500);
/// Interval at which the stored layers are listed.
const POLL: Duration = Duration::from_millis(2);
/// Limit for the layers of a pull to be stored.
const STORED: Duration = Duration::from_secs(600);
/// Files in one directory of a layer with many.
const FILES_OF_DIR: usize = 100;

/// The size of an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PullsSize {
    /// Its layers.
    pub(crate) layers: usize,
    /// The bytes of each.
    pub(crate) bytes: usize,
    /// The files that these bytes are in.
    pub(crate) files: usize,
}

/// Durations and costs of one pull.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pull {
    /// From the request to the answer.
    all: Duration,
    /// From the request until the last layer was in containerd's content store.
    stored: Duration,
    /// The processor time of containerd, and for our pulls of the daemon as well.
    busy: Duration,
}

/// An image in the registry.
#[derive(Debug)]
pub(crate) struct Pushed {
    /// Its repository and its tag.
    name: String,
    /// The paths of its layers.
    layers: Vec<PathBuf>,
}

/// One pull of each side, each of its own image. The side that pulls first alternates.
pub(crate) async fn round(
    stand: &mut TestBed,
    round: u32,
    size: PullsSize,
) -> Result<Pair<Pull>, Failure> {
    let images = push_pair(stand, &size.layers.to_string(), round, size);
    let from = stand.registry.address();
    round_from(stand, round, &images, from).await
}

/// Makes an image for each side, and pushes both.
pub(crate) fn push_pair(stand: &TestBed, name: &str, round: u32, size: PullsSize) -> Pair<Pushed> {
    Pair {
        theirs: push(stand, &format!("theirs-{name}"), round, size),
        ours: push(stand, &format!("ours-{name}"), round, size),
    }
}

/// One pull of each side from this address, which stands for the registry. The images may have been pulled before.
pub(crate) async fn round_from(
    stand: &mut TestBed,
    round: u32,
    images: &Pair<Pushed>,
    from: SocketAddr,
) -> Result<Pair<Pull>, Failure> {
    let containerd = stand.containerd.pid();
    let daemon = u32::try_from(stand.daemon.pid())?;
    let their = [containerd];
    let our = [containerd, daemon];
    let theirs = pull(&mut stand.theirs, &images.theirs, from, &their);
    let ours = pull(&mut stand.ours, &images.ours, from, &our);
    Pair::in_turns(round, theirs, ours).await
}

/// The bound of a pull.
const BOUND: &str = "containerd unpacks, as it does for its own plugin, and before 2.2 layer by layer. Ours sends it every byte over\n\
    its socket besides, which costs it processor time. Tried: messages of 32 KiB to 1 MiB, a connection for each layer, one to three\n\
    layers at a time, hashing by containerd alone.";

/// Returns the rows of the pulls.
pub(crate) fn rows(name: &str, pulls: &[Pair<Pull>], goal: Option<Goal>) -> Vec<Row> {
    let times = |of: fn(&Pull) -> Duration| {
        pulls.iter().map(move |pair| Pair {
            theirs: of(&pair.theirs),
            ours: of(&pair.ours),
        })
    };
    let mut all = Row::times(&format!("= {name}"), times(|pull| pull.all));
    all.goal = goal;
    all.bound = BOUND;
    vec![
        Row::times("until the last layer is stored", times(|pull| pull.stored)),
        Row::times(
            "from then to the answer: unpacking",
            times(|pull| pull.all.saturating_sub(pull.stored)),
        ),
        all,
        Row::times("processor time", times(|pull| pull.busy)),
    ]
}

async fn pull(
    side: &mut Side,
    image: &Pushed,
    from: SocketAddr,
    servers: &[u32],
) -> Result<Pull, Failure> {
    let reference = format!("{from}/{}", image.name);
    let gone = async {
        while image.layers.iter().any(|layer| layer.exists()) {
            sleep(POLL).await;
        }
    };
    timeout(STORED, gone)
        .await
        .map_err(|_| Failure::from("the layers of a removed image stay"))?;
    let before = processor::spent(servers)?;
    let begin = Instant::now();
    let stored = async {
        let all = async {
            while !image.layers.iter().all(|layer| layer.exists()) {
                sleep(POLL).await;
            }
        };
        timeout(STORED, all)
            .await
            .map_err(|_| Failure::from("the layers of a pull are not stored"))?;
        Ok(begin.elapsed())
    };
    let (all, stored) = tokio::try_join!(side.pull(&reference), stored)?;
    let busy = processor::spent(servers)?.saturating_sub(before);
    if !side.has_image(&reference).await? {
        return Err(format!("{} does not have {reference} after its pull", side.name).into());
    }
    side.remove_image(&reference).await?;
    // Containerd removes the files after its answer, and the kernel writes what was stored: neither is the
    // next pull's.
    sleep(COOLDOWN_LIMIT).await;
    nix::unistd::sync();
    Ok(Pull { all, stored, busy })
}

/// Makes an image of random layers and pushes it.
fn push(stand: &TestBed, name: &str, round: u32, size: PullsSize) -> Pushed {
    let mut image = ImageBuilder::new().cmd(&["/none"]);
    for _ in 0..size.layers {
        image = image.layer(random_files(size));
    }
    let image = image.build();
    let tag = format!("bench/{name}:{round}");
    stand.registry.push(&tag, &image);
    let layers = image
        .layers
        .iter()
        .map(|layer| blob(&stand.containerd.root, &layer.digest))
        .collect();
    Pushed { name: tag, layers }
}

/// A layer that no other image has.
fn random_files(size: PullsSize) -> Layer {
    let seed = u64::from_le_bytes(random_bytes());
    if size.files <= 1 {
        return random_layer(size.bytes, seed);
    }
    let each = size.bytes / size.files;
    let mut content = Vec::new();
    let mut layer = LayerBuilder::default().dir("files", 0o755);
    for number in 0..size.files {
        if number.is_multiple_of(FILES_OF_DIR) {
            layer = layer.dir(&format!("files/{}", number / FILES_OF_DIR), 0o755);
        }
        content.clear();
        let mut state = seed ^ u64::try_from(number).unwrap_or(0).rotate_left(32);
        while content.len() < each {
            // Xorshift: enough for content that no other file has.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            content.extend_from_slice(&state.to_le_bytes());
        }
        content.truncate(each);
        let path = format!("files/{}/{number}", number / FILES_OF_DIR);
        layer = layer.file(&path, content.clone(), 0o644);
    }
    layer.build()
}

/// Returns the path at which containerd stores a complete blob.
fn blob(root: &Path, digest: &str) -> PathBuf {
    root.join("io.containerd.content.v1.content/blobs")
        .join(digest.replace(':', "/"))
}
