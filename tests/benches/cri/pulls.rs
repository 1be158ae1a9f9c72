//! Pulls of images that containerd does not have: its namespaces share content.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use switchyard_tests::host::random_bytes;
use switchyard_tests::image::{ImageBuilder, random_layer};
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
const STORED: Duration = Duration::from_secs(120);

/// The size of an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PullsSize {
    /// Its layers.
    pub(crate) layers: usize,
    /// The bytes of each.
    pub(crate) bytes: usize,
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
struct Pushed {
    reference: String,
    /// The paths of its layers.
    layers: Vec<PathBuf>,
}

/// One pull of each side, each of its own image. The side that pulls first alternates.
pub(crate) async fn round(
    stand: &mut TestBed,
    round: u32,
    size: PullsSize,
) -> Result<Pair<Pull>, Failure> {
    let theirs = push(stand, &format!("theirs-{}", size.layers), round, size);
    let ours = push(stand, &format!("ours-{}", size.layers), round, size);
    let containerd = stand.containerd.pid();
    let daemon = u32::try_from(stand.daemon.pid())?;
    let their = [containerd];
    let our = [containerd, daemon];
    let theirs = pull(&mut stand.theirs, &theirs, &their);
    Pair::in_turns(round, theirs, pull(&mut stand.ours, &ours, &our)).await
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

async fn pull(side: &mut Side, image: &Pushed, servers: &[u32]) -> Result<Pull, Failure> {
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
    let (all, stored) = tokio::try_join!(side.pull(&image.reference), stored)?;
    let busy = processor::spent(servers)?.saturating_sub(before);
    if !side.has_image(&image.reference).await? {
        return Err(format!(
            "{} does not have {} after its pull",
            side.name, image.reference
        )
        .into());
    }
    side.remove_image(&image.reference).await?;
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
        image = image.layer(random_layer(size.bytes, u64::from_le_bytes(random_bytes())));
    }
    let image = image.build();
    let tag = format!("bench/{name}:{round}");
    stand.registry.push(&tag, &image);
    let layers = image
        .layers
        .iter()
        .map(|layer| blob(&stand.containerd.root, &layer.digest))
        .collect();
    Pushed {
        reference: stand.registry.reference(&tag),
        layers,
    }
}

/// Returns the path at which containerd stores a complete blob.
fn blob(root: &Path, digest: &str) -> PathBuf {
    root.join("io.containerd.content.v1.content/blobs")
        .join(digest.replace(':', "/"))
}
