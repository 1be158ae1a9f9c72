//! The text of figures, read by an independent parser of Prometheus' text format.

use std::collections::{BTreeMap, BTreeSet};
use std::time::UNIX_EPOCH;

use proptest::prelude::*;
use switchyard_core::id::TaskId;

use super::*;
use crate::samples;

/// A line of samples: the metric's name, its labels in order, and its value.
type Line = (String, Vec<(String, String)>, String);

/// Parses a page as Prometheus does, and checks that each metric is described once, before its samples, which
/// are together.
fn parse(text: &str) -> Vec<Line> {
    let mut described = BTreeSet::new();
    let mut current = String::new();
    let mut lines = Vec::new();
    let mut help = None;
    for line in text
        .strip_suffix('\n')
        .unwrap_or(text)
        .split('\n')
        .filter(|_| !text.is_empty())
    {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = Some(
                rest.split_once(' ')
                    .expect("a name and a text")
                    .0
                    .to_owned(),
            );
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            assert!(matches!(kind, "counter" | "gauge"), "{line}");
            assert_eq!(help.take().as_deref(), Some(name));
            assert!(
                described.insert(name.to_owned()),
                "{name} is described twice"
            );
            current = name.to_owned();
        } else {
            let sample = sample(line);
            assert_eq!(sample.0, current, "{line}");
            lines.push(sample);
        }
    }
    lines
}

fn sample(line: &str) -> Line {
    let (name, mut rest) = line.split_once('{').expect("labels");
    let mut labels = Vec::new();
    loop {
        let (label, value) = rest.split_once("=\"").expect("a label");
        let mut chars = value.char_indices();
        let mut text = String::new();
        let end = loop {
            match chars.next().expect("an end") {
                (at, '"') => break at + 1,
                (_, '\\') => text.push(match chars.next().expect("an escape").1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("{c} is no escape"),
                }),
                (_, c) => text.push(c),
            }
        };
        labels.push((label.to_owned(), text));
        rest = &value[end..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    let value = rest.strip_prefix("} ").expect("a value");
    value.parse::<f64>().expect("a number");
    (name.to_owned(), labels, value.to_owned())
}

fn text(figures: Figures, owner: Option<Owner>) -> String {
    Arc::new(figures).chunks(owner).collect()
}

fn add_task(figures: &mut Figures, owner: Owner, byte: u8, labels: &[(&str, &str)]) {
    let id = TaskId::from_bytes([byte; 32]);
    let subject = Subject::new(owner, &id.to_string(), labels.iter().copied());
    figures.add_task(
        subject,
        &samples::task(owner, id),
        &samples::reading(),
        UNIX_EPOCH,
    );
}

#[test]
fn samples_of_a_metric_are_together_with_labels_in_order() {
    let mut figures = Figures::default();
    add_task(
        &mut figures,
        Owner::Kubernetes,
        1,
        &[("pod", "a"), ("container", "c")],
    );
    add_task(&mut figures, Owner::Nomad, 2, &[("nomad_job", "b")]);
    figures.add_sandbox(
        Subject::new(Owner::Kubernetes, "s", [("pod", "a"), ("container", "")]),
        &[samples::interface()],
    );
    let lines = parse(&text(figures, None));
    let of = |name: &str| {
        lines
            .iter()
            .filter(|line| line.0 == name)
            .cloned()
            .collect::<Vec<_>>()
    };
    let owned = |labels: &[(&str, &str)]| {
        labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect::<Vec<_>>()
    };
    let [first, second] = [1, 2].map(|byte| TaskId::from_bytes([byte; 32]).to_string());
    let expected = [
        owned(&[
            ("owner", "kubernetes"),
            ("id", &first),
            ("pod", "a"),
            ("container", "c"),
            ("cpu", "total"),
        ]),
        owned(&[
            ("owner", "nomad"),
            ("id", &second),
            ("nomad_job", "b"),
            ("cpu", "total"),
        ]),
    ];
    let used: Vec<_> = of("container_cpu_usage_seconds_total")
        .into_iter()
        .collect();
    assert_eq!(
        used.iter().map(|line| line.1.clone()).collect::<Vec<_>>(),
        expected
    );
    assert_eq!(used[0].2, "9007199254.999999999");
    let received = &of("container_network_receive_bytes_total")[0];
    assert_eq!(
        received.1,
        owned(&[
            ("owner", "kubernetes"),
            ("id", "s"),
            ("pod", "a"),
            ("container", ""),
            ("interface", "eth0")
        ])
    );
}

#[test]
fn owner_restricts_samples_and_headers() {
    let mut figures = Figures::default();
    add_task(&mut figures, Owner::Nomad, 1, &[]);
    figures.add_sandbox(
        Subject::new(Owner::Kubernetes, "s", []),
        &[samples::interface()],
    );
    let figures = Arc::new(figures);
    let of = |owner| figures.chunks(Some(owner)).collect::<String>();
    let lines = parse(&of(Owner::Kubernetes));
    assert_eq!(lines.len(), 8);
    assert!(
        lines
            .iter()
            .all(|line| line.0.starts_with("container_network_"))
    );
    assert!(!of(Owner::Nomad).contains("container_network_"));
    assert_eq!(of(Owner::Swarm), "");
    assert_eq!(text(Figures::default(), None), "");
}

#[test]
fn chunks_are_bounded_and_complete() {
    let mut figures = Figures::default();
    let long = "\n".repeat(1024);
    for byte in 0..40 {
        let labels = ["pod", "namespace", "container", "image"].map(|name| (name, long.as_str()));
        add_task(&mut figures, Owner::Kubernetes, byte, &labels);
    }
    let figures = Arc::new(figures);
    let chunks: Vec<_> = figures.chunks(None).collect();
    // A line with four names of 1,024 bytes, each of which needs an escape, has some 8 KiB.
    assert!(chunks.iter().all(|chunk| chunk.len() < CHUNK + (10 << 10)));
    assert!(chunks.len() > 40, "{}", chunks.len());
    assert!(chunks.iter().all(|chunk| chunk.ends_with('\n')));
    let lines = parse(&chunks.concat());
    let per_task = figures.families.iter().map(Vec::len).sum::<usize>() / 40;
    assert_eq!(lines.len(), 40 * per_task);
    let counts = lines
        .iter()
        .fold(BTreeMap::<_, usize>::new(), |mut counts, line| {
            *counts.entry(line.0.as_str()).or_default() += 1;
            counts
        });
    assert_eq!(counts["container_memory_rss"], 40);
}

proptest! {
    #[test]
    fn any_names_parse_back(names in prop::collection::vec("(?s).{0,40}", 4), device in "(?s).{0,20}") {
        let mut figures = Figures::default();
        let labels = ["pod", "namespace", "container", "image"];
        let pairs = labels.iter().copied().zip(names.iter().map(String::as_str));
        let id = TaskId::from_bytes([3; 32]);
        let subject = Subject::new(Owner::Kubernetes, &id.to_string(), pairs);
        let mut reading = samples::reading();
        reading.detail.devices[0].device.clone_from(&device);
        figures.add_task(subject, &samples::task(Owner::Kubernetes, id), &reading, UNIX_EPOCH);
        let lines = parse(&text(figures, None));
        for (_, labels, _) in &lines {
            let values: Vec<_> = labels.iter().skip(2).take(4).map(|(_, value)| value).collect();
            prop_assert_eq!(values, names.iter().collect::<Vec<_>>());
        }
        let reads = lines.iter().find(|line| line.0 == "container_fs_reads_total");
        prop_assert_eq!(&reads.expect("it is reported").1[6].1, &device);
    }
}
