//! Pulls from a registry that is far away, over a modelled link: of an image of ten layers, of one with a single large layer, and of
//! one with many small files.

use std::time::Duration;

use switchyard_tests::far_link::{FarLink, LinkShape};

use crate::failure::Failure;
use crate::pulls::{self, PullsSize};
use crate::report::{self, Report};
use crate::row::Goal;
use crate::test_bed::TestBed;

/// Small files of one layer, and their bytes together.
const FILES: (usize, usize) = (30_000, 30_000_000);
/// Bytes of the image that is pulled first over each link: what both sides keep of a registry, as tokens, is not measured.
const FIRST_PULL: usize = 1_000_000;

/// The extent of this part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarSize {
    /// Pulls of each side, image and link.
    pub(crate) pulls: u32,
    /// Layers of the first image.
    pub(crate) image_layers: usize,
    /// Its size in MB.
    pub(crate) image_mb: usize,
    /// The size of the large layer in MB.
    pub(crate) layer_mb: usize,
    /// The round trip of the link.
    pub(crate) round_trip: Duration,
    /// Its rate.
    pub(crate) link_mbit: u64,
    /// The rate of one connection, where that does not fill the link.
    pub(crate) connection_mbit: u64,
}

/// An image that is pulled.
#[derive(Clone, Copy, Debug)]
struct FarImage {
    name: &'static str,
    /// The titles of its figures, by link.
    titles: [&'static str; 2],
    size: PullsSize,
}

/// A link that images are pulled over.
struct Link {
    relay: FarLink,
    goal: Goal,
}

/// Measures all of it.
pub(crate) async fn measure(
    stand: &mut TestBed,
    size: FarSize,
    report: &mut Report,
) -> Result<(), Failure> {
    let links = links(stand, size)?;
    let first = PullsSize {
        layers: 1,
        bytes: FIRST_PULL,
        files: 1,
    };
    for (number, link) in (0..).zip(&links) {
        let images = pulls::push_pair(stand, "first", number, first);
        let _ = pulls::round_from(stand, 0, &images, link.relay.address()).await?;
    }
    let note = format!(
        "{} pulls of each side, of random bytes in gzip. A relay in the benchmark delays each direction by half of {} ms, and lets\n\
         {} Mbit/s pass for all connections; of a slow connection {} Mbit/s.\n",
        size.pulls,
        size.round_trip.as_millis(),
        size.link_mbit,
        size.connection_mbit,
    );
    for image in images(size) {
        // Its content is the same for all pulls: a layer of gigabytes takes longer to be made than to be pulled.
        let pushed = pulls::push_pair(stand, image.name, 0, image.size);
        for (link, title) in links.iter().zip(image.titles) {
            let mut samples = Vec::new();
            for round in 1..=size.pulls {
                let from = link.relay.address();
                samples.push(pulls::round_from(stand, round, &pushed, from).await?);
                report::progress(title, round, size.pulls);
            }
            // Many files take their time in Diff/Apply, whatever the link.
            let goal = if image.size.files > 1 {
                Goal::RatioAtMost(1.0)
            } else {
                link.goal
            };
            let rows = pulls::rows(&image.title(), &samples, Some(goal));
            report.section(title, rows, note.clone());
        }
    }
    Ok(())
}

fn images(size: FarSize) -> [FarImage; 3] {
    [
        FarImage {
            name: "layers",
            titles: ["far: layers", "far, slow connections: layers"],
            size: PullsSize {
                layers: size.image_layers,
                bytes: size.image_mb * 1_000_000 / size.image_layers,
                files: 1,
            },
        },
        FarImage {
            name: "large",
            titles: ["far: large layer", "far, slow connections: large layer"],
            size: PullsSize {
                layers: 1,
                bytes: size.layer_mb * 1_000_000,
                files: 1,
            },
        },
        FarImage {
            name: "files",
            titles: ["far: many files", "far, slow connections: many files"],
            size: PullsSize {
                layers: 1,
                bytes: FILES.1,
                files: FILES.0,
            },
        },
    ]
}

impl FarImage {
    fn title(&self) -> String {
        let PullsSize {
            layers,
            bytes,
            files,
        } = self.size;
        let mb = layers * bytes / 1_000_000;
        if files > 1 {
            format!("pull of {files} files, {mb} MB")
        } else {
            format!("pull of {mb} MB, layers: {layers}")
        }
    }
}

/// The links: one that a connection fills once its window has grown, and one that it does not.
fn links(stand: &TestBed, size: FarSize) -> Result<[Link; 2], Failure> {
    let relay = |connection_mbit: u64| {
        FarLink::start(
            stand.registry.upstream(),
            LinkShape {
                round_trip: size.round_trip,
                bytes_per_second: size.link_mbit * 125_000,
                window: window(connection_mbit, size.round_trip),
            },
        )
    };
    Ok([
        Link {
            relay: relay(2 * size.link_mbit)?,
            goal: Goal::RatioAtMost(1.0),
        },
        Link {
            relay: relay(size.connection_mbit)?,
            goal: Goal::RatioAtMost(0.8),
        },
    ])
}

/// The bytes in flight with which a connection reaches a rate.
fn window(mbit: u64, round_trip: Duration) -> usize {
    let micros = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
    // A Mbit/s is an eighth of a byte in a microsecond.
    usize::try_from(mbit.saturating_mul(micros) / 8).unwrap_or(usize::MAX)
}
