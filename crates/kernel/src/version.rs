//! The version of the running kernel.

/// `major.minor` of a release text such as `5.15.0-91-generic`.
pub fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit());
    let major = numbers.next()?.parse().ok()?;
    // A release without a minor number, such as `6`, means `6.0`.
    let minor = numbers.next().filter(|text| !text.is_empty()).map_or(Some(0), |text| text.parse().ok())?;
    Some((major, minor))
}

/// The release of the running kernel.
pub fn release() -> std::io::Result<String> {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_of_distributions_are_ignored() {
        for (release, want) in [
            ("5.13.0", Some((5, 13))),
            ("5.15.0-91-generic\n", Some((5, 15))),
            ("6.18.44-fc-v445", Some((6, 18))),
            ("6.8+", Some((6, 8))),
            ("6", Some((6, 0))),
            ("", None),
            ("linux-6.1", None),
        ] {
            assert_eq!(parse_release(release), want, "{release:?}");
        }
    }
}
