//! `switchyard page`: a link that opens the status page in a browser, once.

use clap::Args;
use http::Method;
use switchyard_operator_api::PageLinkView;

use super::daemon::{self, DaemonError, Target};
use crate::output::{Format, print, print_error, print_json};

const PATH: &str = "/v1/page";

/// The daemon, and the output format.
#[derive(Debug, Args)]
pub(super) struct PageArgs {
    #[command(flatten)]
    target: Target,
}

/// Prints the link alone to standard output, and what to do with it to standard error.
pub(super) async fn page(args: &PageArgs) -> Result<(), DaemonError> {
    let body = daemon::send(&args.target.socket, Method::POST, PATH).await?;
    let link: PageLinkView = daemon::parse(PATH, &body)?;
    match args.target.output {
        Format::Json => print_json(&link)?,
        Format::Text => {
            print(format!("{}\n", link.url))?;
            print_error(hint(&link))?;
        }
    }
    Ok(())
}

fn hint(link: &PageLinkView) -> String {
    let from = link
        .url
        .strip_prefix("http://")
        .and_then(|rest| rest.split('/').next())
        .unwrap_or_default();
    let port = from.rsplit(':').next().unwrap_or_default();
    let seconds = link.valid_seconds;
    let reach = if link.is_loopback {
        format!("From another machine, open it through `ssh -L {port}:{from} NODE`.")
    } else {
        "The address is not on loopback, and without TLS: who sees the traffic can use the session."
            .to_owned()
    };
    format!("It opens the page once, within {seconds} seconds. {reach}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_tells_how_to_reach_the_page() {
        let url = "http://127.0.0.1:9640/enter?ticket=00".to_owned();
        let link = PageLinkView {
            url,
            valid_seconds: 60,
            is_loopback: true,
        };
        assert!(hint(&link).contains("within 60 seconds"), "{}", hint(&link));
        assert!(
            hint(&link).contains("`ssh -L 9640:127.0.0.1:9640 NODE`"),
            "{}",
            hint(&link)
        );
        assert!(!format!("{link:?}").contains("ticket"));
        let wide = PageLinkView {
            is_loopback: false,
            ..link
        };
        assert!(hint(&wide).contains("without TLS"));
    }
}
