//! The logging part of the configuration, which is checked and applied before the rest.

use super::v1alpha1::LoggingConfiguration;
use super::validation::Faults;
use crate::duration::Duration;
use crate::gates::{Gate, Gates};
use crate::logs::{Format, LogSettings};
use crate::quantity::Quantity;

/// Buffers do not grow beyond this, as in the reference.
const LARGEST_BUFFER: i64 = 2 << 30;

/// What to log and where to, or all that speaks against it.
pub fn log_settings(config: &LoggingConfiguration, gates: &Gates) -> Result<LogSettings, super::Invalid> {
    let mut faults = Faults::under("logging");
    let format = check_format(config, gates, &mut faults);
    check_verbosities(config, &mut faults);
    check_options(config, gates, &mut faults);
    faults.into_result()?;

    let (split, size) = match format {
        Format::Text => (config.options.text.split_stream, config.options.text.info_buffer_size),
        Format::Json => (config.options.json.split_stream, config.options.json.info_buffer_size),
    };
    let bytes = usize::try_from(size.value().clamp(0, LARGEST_BUFFER)).unwrap_or_default();
    Ok(LogSettings {
        format,
        verbosity: config.verbosity,
        vmodule: config.vmodule.iter().map(|item| (item.file_pattern.clone(), item.verbosity)).collect(),
        flush_frequency: config.flush_frequency.duration.to_std().unwrap_or_default(),
        split: split.then_some(bytes),
        quiet: false,
    })
}

fn check_format(config: &LoggingConfiguration, gates: &Gates, faults: &mut Faults) -> Format {
    match config.format.as_str() {
        "text" => Format::Text,
        "json" => {
            if !gates.enabled(Gate::LoggingBetaOptions) {
                faults.forbidden("format", "Log format json is disabled, see LoggingBetaOptions feature");
            }
            Format::Json
        }
        other => {
            faults.invalid("format", other, "Unsupported log format");
            Format::Text
        }
    }
}

fn check_verbosities(config: &LoggingConfiguration, faults: &mut Faults) {
    if config.flush_frequency.duration <= Duration::ZERO {
        faults.invalid("flushFrequency", config.flush_frequency, "Must be greater than zero");
    }
    if config.verbosity > i32::MAX.unsigned_abs() {
        faults.invalid("verbosity", config.verbosity, "Must be <= 2147483647");
    }
    if !config.vmodule.is_empty() && config.format != "text" {
        faults.forbidden("vmodule", "Only supported for text log format");
    }
    for (index, item) in config.vmodule.iter().enumerate() {
        let path = format!("vmodule[{index}]");
        if item.file_pattern.is_empty() {
            faults.required(&path, "File pattern must not be empty");
        }
        if item.file_pattern.contains(['=', ',']) {
            let pattern = item.file_pattern.as_str();
            faults.invalid(&path, pattern, "File pattern must not contain equal sign or comma");
        }
        if item.verbosity > i32::MAX.unsigned_abs() {
            faults.invalid(&path, item.verbosity, "Must be <= 2147483647");
        }
    }
}

fn check_options(config: &LoggingConfiguration, gates: &Gates, faults: &mut Faults) {
    if gates.enabled(Gate::LoggingAlphaOptions) {
        return;
    }
    let (text, json) = (&config.options.text, &config.options.json);
    let mut check = |format: &str, split: bool, size: Quantity| {
        for (option, used) in [("splitStream", split), ("infoBufferSize", !size.is_zero())] {
            if used {
                let path = format!("options.{format}.{option}");
                faults.forbidden(&path, "Feature LoggingAlphaOptions is disabled");
            }
        }
    };
    check("text", text.split_stream, text.info_buffer_size);
    check("json", json.split_stream, json.info_buffer_size);
}
