//! Large blobs in ranges, from registries that serve them, refuse them, ignore them, limit them, or break off.

use std::ops::Range;
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use switchyard_registry::{Blob, Client, Config, Descriptor, Error, Platforms, RangeConfig};

use crate::server::{
    LAYER, Registry, broken, certs_d, open, part, quick, read, stuck, text, with_header,
};

/// Bytes of a range.
const RANGE: usize = 50_000;
/// Bytes of the blob: twenty ranges.
const SIZE: usize = 20 * RANGE;
/// Concurrent requests.
const AT_ONCE: usize = 4;

fn content() -> Bytes {
    (0..SIZE)
        .map(|n| u8::try_from((n * 7 + n / 251) % 251).unwrap())
        .collect()
}

fn config() -> Config {
    Config {
        idle_timeout: Duration::from_secs(1),
        ranges: RangeConfig {
            at_once: AT_ONCE,
            bytes: RANGE.try_into().unwrap(),
            latency: Duration::ZERO,
        },
        ..quick()
    }
}

/// Reads the blob from `offset` on.
async fn fetch(
    registry: &Registry,
    config: Config,
    (layer, offset): (&Descriptor, usize),
) -> Result<Vec<u8>, Error> {
    let pull = open(&Client::new(config), &registry.reference("app:v1")).await;
    read(pull.blob(layer, offset.try_into().unwrap())).await
}

/// The ranges that were requested, in the order of the requests.
fn ranges(registry: &Registry) -> Vec<Option<(usize, Option<usize>)>> {
    registry.seen().iter().map(|seen| seen.range()).collect()
}

/// Answer of a registry to a request of a range, by its first byte and its end; `None` to answer as it should. It gets the number of such
/// requests before.
type Misbehaviour = fn(&Bytes, (usize, usize), usize) -> Option<Response>;

/// The answer to the fifth of these requests.
fn fifth(number: usize, answer: impl FnOnce() -> Response) -> Option<Response> {
    (number == 4).then(answer)
}

/// This response, as one to a request of a range.
fn as_part(mut response: Response, bytes: &Bytes, range: Range<usize>) -> Response {
    let name = "content-range";
    let whole = part(bytes, range);
    *response.status_mut() = whole.status();
    response
        .headers_mut()
        .insert(name, whole.headers()[name].clone());
    response
}

/// Name, behaviour, and the most requests.
const CASES: [(&str, Misbehaviour, usize); 14] = [
    ("serves them", |_, _, _| None, 20),
    (
        "ignores them",
        |bytes, _, _| Some(Response::new(bytes.clone().into())),
        1,
    ),
    ("refuses them by 416", |_, _, _| Some(text(416, "")), 2),
    ("refuses them by 400", |_, _, _| Some(text(400, "")), 2),
    ("cannot serve them", |_, _, _| Some(text(501, "")), 2),
    (
        "limits them from the fifth on",
        |_, _, number| (number >= 4).then(|| with_header(429, "retry-after", "0")),
        4 + AT_ONCE + 1,
    ),
    (
        "is overloaded from the fifth on",
        |_, _, number| (number >= 4).then(|| text(503, "")),
        4 + AT_ONCE + 1,
    ),
    (
        "breaks the connection of the fifth",
        |bytes, (start, end), number| {
            let sent = &bytes[start..start + 1000];
            fifth(number, || {
                as_part(broken(end - start, sent), bytes, start..end)
            })
        },
        21,
    ),
    (
        "breaks all connections but the first",
        |bytes, (start, end), number| {
            (number > 0).then(|| as_part(broken(end - start, b""), bytes, start..end))
        },
        1 + AT_ONCE + 1,
    ),
    (
        "serves the first connection alone",
        |bytes, (start, end), number| {
            (number > 0).then(|| as_part(stuck(end - start, b""), bytes, start..end))
        },
        1 + AT_ONCE + 1,
    ),
    (
        "falls silent amid the fifth",
        |bytes, (start, end), number| {
            let sent = &bytes[start..start + 1000];
            fifth(number, || {
                as_part(stuck(end - start, sent), bytes, start..end)
            })
        },
        21,
    ),
    (
        "sends less than the fifth",
        |bytes, (start, end), number| fifth(number, || part(bytes, start..end - 1000)),
        21,
    ),
    (
        "sends all that follows",
        |bytes, (start, _), _| Some(part(bytes, start..SIZE)),
        1,
    ),
    (
        "sends another part for the fifth",
        |bytes, (start, end), number| fifth(number, || part(bytes, start + 1..end)),
        4 + AT_ONCE + 1,
    ),
];

#[tokio::test]
async fn large_blob_is_complete_however_its_registry_treats_ranges() {
    let bytes = content();
    for (name, misbehaviour, most) in CASES {
        let registry = Registry::start().await;
        let layer = registry.blob(LAYER, &bytes);
        let served = bytes.clone();
        let mut number = 0;
        registry.rule(move |seen| {
            // What has no end is the rest, after a failure.
            let (start, Some(end)) = seen.range()? else {
                return None;
            };
            number += 1;
            misbehaviour(&served, (start, end), number - 1)
        });
        let got = fetch(&registry, config(), (&layer, 0)).await;
        let got = got.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert!(got == bytes, "{name}: {} bytes", got.len());
        let asked = ranges(&registry);
        assert!(asked.len() <= most, "{name}: {asked:?}");
    }
}

#[tokio::test]
async fn each_byte_is_requested_once() {
    for offset in [0, 1, 3 * RANGE, 3 * RANGE + 17] {
        let registry = Registry::start().await;
        let bytes = content();
        let layer = registry.blob(LAYER, &bytes);
        let got = fetch(&registry, config(), (&layer, offset)).await.unwrap();
        assert!(got == bytes[offset..], "{offset}");
        let mut asked: Vec<_> = ranges(&registry).into_iter().flatten().collect();
        asked.sort_unstable();
        let mut from = offset;
        for (start, end) in asked {
            assert_eq!(start, from, "{offset}");
            from = end.expect("it has an end");
            assert!(from - start <= RANGE, "{offset}");
        }
        assert_eq!(from, SIZE, "{offset}");
    }
}

#[tokio::test]
async fn one_response_is_requested_where_ranges_gain_nothing() {
    let far = config().ranges;
    let cases = [
        ("off", RangeConfig { at_once: 1, ..far }),
        (
            "a small blob",
            RangeConfig {
                bytes: 1 << 20,
                ..far
            },
        ),
        (
            "a registry that is near",
            RangeConfig {
                latency: Duration::from_secs(3600),
                ..far
            },
        ),
        ("the default", RangeConfig::default()),
    ];
    for (name, ranges_config) in cases {
        let registry = Registry::start().await;
        let bytes = content();
        registry.image("v1", &bytes);
        let config = Config {
            ranges: ranges_config,
            ..config()
        };
        let pull = open(&Client::new(config), &registry.reference("app:v1")).await;
        let resolved = pull.resolve().await.unwrap();
        let image = pull
            .image(resolved, &Platforms::of_this_machine())
            .await
            .unwrap();
        let got = read(pull.blob(&image.manifest.layers[0], 0)).await.unwrap();
        assert!(got == bytes, "{name}");
        let asked = ranges(&registry);
        assert!(asked.iter().all(Option::is_none), "{name}: {asked:?}");
        assert_eq!(asked.len(), 2, "{name}: {asked:?}");
    }
}

#[tokio::test]
async fn mirror_that_does_not_have_an_image_says_nothing_about_ranges_of_its_registry() {
    // The answer of the mirror, which is near.
    for status in [404, 401, 403, 416, 429, 500, 503] {
        let mirror = Registry::start().await;
        mirror.rule(move |_| Some(text(status, "")));
        let registry = Registry::start().await;
        let bytes = content();
        registry.image("v1", &bytes);
        // Only what is requested in ranges is served at once: the registry is far away.
        registry.rule(|seen| {
            if seen.range().is_none() {
                std::thread::sleep(Duration::from_millis(60));
            }
            None
        });
        let hosts = format!(
            "server = \"{}\"\n[host.\"{}\"]",
            registry.url(),
            mirror.url()
        );
        let (_root, roots) = certs_d("a.example", &hosts);
        let config = Config {
            hosts_dirs: roots,
            ranges: RangeConfig {
                latency: Duration::from_millis(50),
                ..config().ranges
            },
            ..config()
        };
        let reference = "a.example/app:v1".parse().unwrap();
        let pull = open(&Client::new(config), &reference).await;
        let resolved = pull.resolve().await.unwrap();
        let image = pull
            .image(resolved, &Platforms::of_this_machine())
            .await
            .unwrap();
        let got = read(pull.blob(&image.manifest.layers[0], 0)).await.unwrap();
        assert!(got == bytes, "{status}");
        let asked = ranges(&registry);
        assert!(
            asked.contains(&Some((0, Some(RANGE)))),
            "{status}: {asked:?}"
        );
    }
}

#[tokio::test]
async fn rest_of_a_blob_comes_with_its_beginning_if_it_is_refused_alone() {
    let config = Config {
        ranges: RangeConfig {
            at_once: 1,
            ..config().ranges
        },
        ..config()
    };
    for (status, offset) in [(416, 0), (400, 0), (405, 0), (416, 4000), (406, SIZE - 1)] {
        let registry = Registry::start().await;
        let bytes = content();
        let layer = registry.blob(LAYER, &bytes);
        let first = bytes.slice(..RANGE);
        if offset == 0 {
            registry.first(1, |_| true, move |_| broken(SIZE, &first));
        }
        registry.rule(move |seen| seen.range().is_some().then(|| text(status, "")));
        let got = fetch(&registry, config.clone(), (&layer, offset)).await;
        assert!(got.unwrap() == bytes[offset..], "{status}, {offset}");
        let asked = ranges(&registry);
        // Once for the rest, and then for all.
        let refused = asked.iter().filter(|range| range.is_some()).count();
        assert_eq!(refused, 1, "{status}, {offset}: {asked:?}");
        assert_eq!(asked.last(), Some(&None), "{status}, {offset}");
    }
    // What is refused altogether is not asked for again and again.
    let registry = Registry::start().await;
    let layer = registry.blob(LAYER, &content());
    registry.rule(|_| Some(text(416, "")));
    let error = fetch(&registry, config, (&layer, 4000)).await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    assert_eq!(ranges(&registry), [Some((4000, None)), None]);
}

#[tokio::test]
async fn wrong_bytes_in_a_range_are_detected() {
    let registry = Registry::start().await;
    let bytes = content();
    let layer = registry.blob(LAYER, &bytes);
    let mut wrong = bytes.to_vec();
    wrong[SIZE - 1] ^= 1;
    let path = format!("/v2/app/blobs/{}", layer.digest);
    registry.put(&path, "x", wrong);
    let error = fetch(&registry, config(), (&layer, 0)).await.unwrap_err();
    assert!(matches!(error, Error::DigestMismatch { .. }), "{error:?}");
}

#[tokio::test]
async fn ranges_follow_a_redirect_to_a_store_of_blobs() {
    let store = Registry::start().await;
    let registry = Registry::start().await;
    let bytes = content();
    let layer = store.blob(LAYER, &bytes);
    let location = format!("{}/v2/app/blobs/{}", store.url(), layer.digest);
    registry.rule(move |seen| {
        seen.is_blob()
            .then(|| with_header(307, "location", &location))
    });
    let got = fetch(&registry, config(), (&layer, 0)).await.unwrap();
    assert!(got == bytes);
    let bounded =
        |range: &Option<(usize, Option<usize>)>| range.is_some_and(|(_, end)| end.is_some());
    assert!(ranges(&store).iter().all(bounded));
    assert_eq!(store.seen().len(), SIZE / RANGE);
}

#[tokio::test]
async fn failures_of_ranges_are_bounded() {
    let registry = Registry::start().await;
    let layer = registry.blob(LAYER, &content());
    // Only the beginning can be downloaded, whatever is requested.
    registry.rule(|seen| match seen.range()? {
        (0, _) => None,
        _ => Some(text(503, "")),
    });
    let error = fetch(&registry, config(), (&layer, 0)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let asked = ranges(&registry);
    // The first, those ahead, and the retries.
    assert!(asked.len() <= 1 + AT_ONCE + 3, "{asked:?}");
}

#[tokio::test]
async fn ranges_ahead_of_all_blobs_together_are_bounded() {
    let registry = Registry::start().await;
    let bytes = content();
    let layer = registry.blob(LAYER, &bytes);
    // What is downloaded ahead never ends.
    registry.rule(move |seen| match seen.range()? {
        (start, Some(end)) if start > 0 => {
            Some(as_part(stuck(end - start, b""), &bytes, start..end))
        }
        _ => None,
    });
    let config = Config {
        idle_timeout: Duration::from_secs(60),
        ranges: RangeConfig {
            at_once: 12,
            ..config().ranges
        },
        ..config()
    };
    let pull = open(&Client::new(config), &registry.reference("app:v1")).await;
    let first_range = async |mut blob: Blob| {
        while blob.offset() < u64::try_from(RANGE).unwrap() {
            blob.chunk().await.unwrap().unwrap();
        }
        blob
    };
    let requests = async |count| {
        let all = async {
            while registry.seen().len() < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), all)
            .await
            .unwrap();
        // More would come at once.
        tokio::time::sleep(Duration::from_millis(20)).await;
        registry.seen().len()
    };
    let mut blobs = Vec::new();
    // The first takes eleven beside its own response, the second the last one; the others come in one response.
    for count in [12, 14, 15, 16] {
        blobs.push(first_range(pull.blob(&layer, 0)).await);
        assert_eq!(requests(count).await, count);
    }
    drop(blobs);
    let _blob = first_range(pull.blob(&layer, 0)).await;
    assert_eq!(requests(16 + 12).await, 16 + 12);
}
