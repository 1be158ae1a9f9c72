//! The cost of the text of 1,000 containers: `cargo bench -p switchyard-container-metrics`. It has neither the
//! reading of the kernel's files nor the sending.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark stops at what fails, and prints"
)]

use std::hint::black_box;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use switchyard_container_metrics::{Figures, Subject, samples};
use switchyard_core::id::{Owner, TaskId};

/// Number of runs of each part; the fastest counts.
const ROUNDS: usize = 20;

const CONTAINERS: usize = 1000;

fn figures() -> Figures {
    let mut figures = Figures::default();
    let reading = samples::reading();
    for number in 0..CONTAINERS {
        let id = TaskId::random();
        let pod = format!("front-end-7c9d8b6f5-{number:05}");
        let labels = [
            ("pod", pod.as_str()),
            ("namespace", "production"),
            ("container", "nginx"),
            ("image", "registry.example/shop/front-end:1.2.3"),
        ];
        let subject = Subject::new(Owner::Kubernetes, &id.to_string(), labels);
        let mut reading = reading.clone();
        let number = u64::try_from(number).unwrap();
        if let Some(cpu) = &mut reading.stats.usage.cpu {
            cpu.total_ns = 1_234_567_891 * number;
        }
        if let Some(memory) = &mut reading.stats.usage.memory {
            memory.working_set_bytes = 123_457 * number;
        }
        figures.add_task(
            subject,
            &samples::task(Owner::Kubernetes, id),
            &reading,
            UNIX_EPOCH,
        );
    }
    figures
}

fn fastest<T>(mut work: impl FnMut() -> T) -> (T, Duration) {
    let timed = (0..ROUNDS).map(|_| {
        let begin = Instant::now();
        let result = black_box(work());
        (result, begin.elapsed())
    });
    timed.min_by_key(|(_, time)| *time).unwrap()
}

fn main() {
    let (figures, collected) = fastest(figures);
    println!("samples of {CONTAINERS} containers, with their ids: {collected:?}");
    let figures = Arc::new(figures);
    let (bytes, written) = fastest(|| {
        figures
            .chunks(None)
            .map(|chunk| black_box(chunk).len())
            .sum::<usize>()
    });
    println!("text, {bytes} bytes: {written:?}");
    for level in [1, 3, 6] {
        let (bytes, packed) = fastest(|| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
            for chunk in figures.chunks(None) {
                encoder.write_all(chunk.as_bytes()).unwrap();
            }
            encoder.finish().unwrap().len()
        });
        println!("text and gzip -{level}, {bytes} bytes: {packed:?}");
    }
}
