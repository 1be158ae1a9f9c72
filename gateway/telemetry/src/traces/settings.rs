//! The settings of tracing: the environment variables that OpenTelemetry has for all programs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use switchyard_core::trace::Sampler;
use switchyard_operator_api::VERSION;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};

/// Time limit of an export, unless the environment has another.
const LIMIT: Duration = Duration::from_secs(10);

/// The longest export that can be asked for.
const LIMIT_MAX: Duration = Duration::from_secs(60);

/// The largest number of headers, and of attributes of the resource.
const PAIRS_MAX: usize = 64;

/// Destination and selection of traces.
#[derive(Clone)]
pub struct TraceSettings {
    /// The collector.
    pub endpoint: Uri,
    /// The certificates of the authorities by which the collector is verified, as PEM; `None`: those of the node.
    pub authorities: Option<PathBuf>,
    /// Sent with every request. They may hold credentials.
    pub headers: MetadataMap,
    /// Time limit of an export.
    pub limit: Duration,
    /// Attributes of the sender of the traces.
    pub resource: Vec<(String, String)>,
    /// Selection of the recorded traces.
    pub sampler: Sampler,
}

/// Reason why the environment describes no tracing.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TraceSettingsError {
    /// The value of a variable is unusable.
    #[error("the environment variable {name} {why}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// The fault of its value, without a value that may be secret.
        why: String,
    },
    /// The file with the certificates of authorities cannot be read.
    #[error("cannot read {}, which OTEL_EXPORTER_OTLP_CERTIFICATE names: {why}", file.display())]
    Authorities {
        /// The file.
        file: PathBuf,
        /// The cause.
        why: String,
    },
    /// The roots of TLS, or the endpoint, are unusable.
    #[error("cannot connect to the collector of traces: {0}")]
    Connection(String),
}

impl fmt::Debug for TraceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            endpoint,
            authorities,
            headers,
            limit,
            resource,
            sampler,
        } = self;
        f.debug_struct("TraceSettings")
            .field("endpoint", endpoint)
            .field("authorities", authorities)
            .field("headers", &headers.keys().collect::<Vec<_>>())
            .field("limit", limit)
            .field("resource", resource)
            .field("sampler", sampler)
            .finish()
    }
}

impl TraceSettings {
    /// The settings of an environment; `None` if it names no collector, or switches tracing off. `host` is
    /// the name of this node.
    ///
    /// # Errors
    /// The first variable that is unusable.
    pub fn from_env(
        env: &[(String, String)],
        host: &str,
    ) -> Result<Option<Self>, TraceSettingsError> {
        // An empty variable counts as none.
        let set: BTreeMap<&str, &str> = env
            .iter()
            .map(|(name, value)| (name.as_str(), value.trim()))
            .filter(|(name, value)| name.starts_with("OTEL_") && !value.is_empty())
            .collect();
        let of = |name: &'static str| set.get(name).map(|value| (name, *value));
        let first =
            |special: &'static str, general: &'static str| of(special).or_else(|| of(general));
        let endpoint = first(
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        );
        let is_disabled =
            of("OTEL_SDK_DISABLED").is_some_and(|(_, value)| value.eq_ignore_ascii_case("true"));
        let Some((name, endpoint)) = endpoint.filter(|_| !is_disabled) else {
            return Ok(None);
        };
        match of("OTEL_TRACES_EXPORTER") {
            Some((_, "none")) => return Ok(None),
            None | Some((_, "otlp")) => {}
            Some((name, other)) => {
                return Err(refuse(
                    name,
                    format!("is {other:?}: traces are exported by \"otlp\", or \"none\""),
                ));
            }
        }
        let endpoint = parse_endpoint(name, endpoint)?;
        let protocol = first(
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        );
        if let Some((name, other)) = protocol.filter(|(_, value)| *value != "grpc") {
            let why = format!(
                "is {other:?}, which is not spoken: set it to \"grpc\", and the endpoint to the collector's port for gRPC, by default 4317"
            );
            return Err(refuse(name, why));
        }
        let authorities = first(
            "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
        );
        let headers = first(
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
            "OTEL_EXPORTER_OTLP_HEADERS",
        );
        let limit = first(
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
            "OTEL_EXPORTER_OTLP_TIMEOUT",
        );
        Ok(Some(Self {
            endpoint,
            authorities: authorities.map(|(_, file)| file.into()),
            headers: headers.map_or_else(
                || Ok(MetadataMap::new()),
                |(name, value)| parse_headers(name, value),
            )?,
            limit: limit.map_or(Ok(LIMIT), |(name, value)| parse_limit(name, value))?,
            resource: resource(
                of("OTEL_SERVICE_NAME"),
                of("OTEL_RESOURCE_ATTRIBUTES"),
                host,
            )?,
            sampler: sampler(of("OTEL_TRACES_SAMPLER"), of("OTEL_TRACES_SAMPLER_ARG"))?,
        }))
    }

    /// Returns whether the connection to the collector is encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        self.endpoint.scheme_str() == Some("https")
    }
}

/// A variable that is set.
type Variable<'a> = Option<(&'static str, &'a str)>;

fn refuse(name: &'static str, why: impl Into<String>) -> TraceSettingsError {
    TraceSettingsError::Variable {
        name,
        why: why.into(),
    }
}

fn parse_endpoint(name: &'static str, value: &str) -> Result<Uri, TraceSettingsError> {
    let form = "must be http://HOST:PORT or https://HOST:PORT";
    let uri: Uri = value.parse().map_err(|_| refuse(name, form))?;
    let is_complete = matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
    let has_port = uri
        .authority()
        .is_some_and(|authority| authority.as_str().len() > authority.host().len());
    // Without this the scheme's port would take the place of one that is none.
    if has_port && uri.port_u16().is_none_or(|port| port == 0) && !has_user(&uri) {
        return Err(refuse(name, format!("{form}, with a port from 1 to 65535")));
    }
    if !is_complete || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(refuse(name, format!("{form}: gRPC has no path")));
    }
    if has_user(&uri) {
        return Err(refuse(
            name,
            "must have no user or password: put them into OTEL_EXPORTER_OTLP_HEADERS",
        ));
    }
    Ok(uri)
}

fn has_user(uri: &Uri) -> bool {
    uri.authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
}

/// Parses headers. Errors do not show a value, which may be secret.
fn parse_headers(name: &'static str, value: &str) -> Result<MetadataMap, TraceSettingsError> {
    let mut headers = MetadataMap::new();
    for (key, value) in pairs(name, value)? {
        let key = AsciiMetadataKey::from_bytes(key.to_ascii_lowercase().as_bytes());
        let key = key.map_err(|_| refuse(name, "has a name that is not one of a header"))?;
        let value = AsciiMetadataValue::try_from(value);
        let value = value.map_err(|_| {
            refuse(
                name,
                format!("has a value for {key} that is not one of a header"),
            )
        })?;
        headers.insert(key, value);
    }
    Ok(headers)
}

fn parse_limit(name: &'static str, value: &str) -> Result<Duration, TraceSettingsError> {
    let limit = value.parse().ok().map(Duration::from_millis);
    let limit = limit.filter(|limit| !limit.is_zero() && *limit <= LIMIT_MAX);
    limit.ok_or_else(|| {
        refuse(
            name,
            format!("must be a number of milliseconds, at most {LIMIT_MAX:?}"),
        )
    })
}

/// Attributes of the sender of the traces: the operator's have precedence over ours.
fn resource(
    service: Variable<'_>,
    attributes: Variable<'_>,
    host: &str,
) -> Result<Vec<(String, String)>, TraceSettingsError> {
    let own = [
        ("service.name", "switchyard"),
        ("service.version", VERSION),
        ("host.name", host),
    ];
    let mut all: BTreeMap<_, _> = own
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    if let Some((name, value)) = attributes {
        all.extend(pairs(name, value)?);
    }
    if let Some((_, name)) = service {
        all.insert("service.name".to_owned(), name.to_owned());
    }
    Ok(all.into_iter().collect())
}

fn sampler(sampler: Variable<'_>, share: Variable<'_>) -> Result<Sampler, TraceSettingsError> {
    let share = || match share {
        None => Ok(1.0),
        Some((name, value)) => {
            let share = value
                .parse::<f64>()
                .ok()
                .filter(|share| (0.0..=1.0).contains(share));
            share.ok_or_else(|| refuse(name, format!("is {value:?}, not a number from 0 to 1")))
        }
    };
    let Some((name, value)) = sampler else {
        return Ok(Sampler::CallerOrAll);
    };
    match value {
        "always_on" => Ok(Sampler::All),
        "always_off" => Ok(Sampler::Nothing),
        "traceidratio" => Ok(Sampler::Share(share()?)),
        "parentbased_always_on" => Ok(Sampler::CallerOrAll),
        "parentbased_always_off" => Ok(Sampler::CallerOrNothing),
        "parentbased_traceidratio" => Ok(Sampler::CallerOrShare(share()?)),
        other => Err(refuse(
            name,
            format!(
                "is {other:?}, which is not known: use always_on, always_off, traceidratio, or one of these with parentbased_ before it"
            ),
        )),
    }
}

/// A list of `KEY=VALUE`, separated by commas, with values that are percent-encoded.
fn pairs(name: &'static str, list: &str) -> Result<Vec<(String, String)>, TraceSettingsError> {
    let form =
        "must be a list KEY=VALUE,KEY=VALUE, with what is special in a value percent-encoded";
    let members = list
        .split(',')
        .map(str::trim)
        .filter(|member| !member.is_empty());
    let pairs = members.map(|member| {
        let (key, value) = member.split_once('=').ok_or_else(|| refuse(name, form))?;
        let value = percent_decoded(value.trim()).ok_or_else(|| refuse(name, form))?;
        match key.trim() {
            "" => Err(refuse(name, form)),
            key => Ok((key.to_owned(), value)),
        }
    });
    let pairs: Vec<_> = pairs.collect::<Result<_, _>>()?;
    if pairs.len() > PAIRS_MAX {
        return Err(refuse(name, format!("has more than {PAIRS_MAX} entries")));
    }
    Ok(pairs)
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2)?;
        rest = behind;
        let digits = str::from_utf8(digits)
            .ok()
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
        decoded.push(u8::from_str_radix(digits?, 16).ok()?);
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests;
