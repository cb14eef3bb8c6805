//! Validates the logging section, which is applied before the rest of the configuration.

use super::v1alpha1::LoggingConfiguration;
use super::validation::FieldErrors;
use crate::duration::Duration;
use crate::gates::{Gate, Gates};
use crate::logs::{Format, LogSettings};
use crate::quantity::Quantity;

/// Upstream's limit.
const MAX_BUFFER_SIZE: i64 = 2 << 30;

/// The settings of the logger, or all errors in the section.
pub fn log_settings(config: &LoggingConfiguration, gates: &Gates) -> Result<LogSettings, super::Invalid> {
    let mut errors = FieldErrors::under("logging");
    let format = check_format(config, gates, &mut errors);
    check_verbosities(config, &mut errors);
    check_options(config, gates, &mut errors);
    errors.into_result()?;

    let (split, size) = match format {
        Format::Text => (config.options.text.split_stream, config.options.text.info_buffer_size),
        Format::Json => (config.options.json.split_stream, config.options.json.info_buffer_size),
    };
    let bytes = usize::try_from(size.value().clamp(0, MAX_BUFFER_SIZE)).unwrap_or_default();
    Ok(LogSettings {
        format,
        verbosity: config.verbosity,
        vmodule: config.vmodule.iter().map(|item| (item.file_pattern.clone(), item.verbosity)).collect(),
        flush_frequency: config.flush_frequency.duration.to_std().unwrap_or_default(),
        split: split.then_some(bytes),
        quiet: false,
    })
}

fn check_format(config: &LoggingConfiguration, gates: &Gates, errors: &mut FieldErrors) -> Format {
    match config.format.as_str() {
        "text" => Format::Text,
        "json" => {
            if !gates.enabled(Gate::LoggingBetaOptions) {
                errors.forbidden("format", "Log format json is disabled, see LoggingBetaOptions feature");
            }
            Format::Json
        }
        other => {
            errors.invalid("format", other, "Unsupported log format");
            Format::Text
        }
    }
}

fn check_verbosities(config: &LoggingConfiguration, errors: &mut FieldErrors) {
    if config.flush_frequency.duration <= Duration::ZERO {
        errors.invalid("flushFrequency", config.flush_frequency, "Must be greater than zero");
    }
    if config.verbosity > i32::MAX.unsigned_abs() {
        errors.invalid("verbosity", config.verbosity, "Must be <= 2147483647");
    }
    if !config.vmodule.is_empty() && config.format != "text" {
        errors.forbidden("vmodule", "Only supported for text log format");
    }
    for (index, item) in config.vmodule.iter().enumerate() {
        let path = format!("vmodule[{index}]");
        if item.file_pattern.is_empty() {
            errors.required(&path, "File pattern must not be empty");
        }
        if item.file_pattern.contains(['=', ',']) {
            let pattern = item.file_pattern.as_str();
            errors.invalid(&path, pattern, "File pattern must not contain equal sign or comma");
        }
        if item.verbosity > i32::MAX.unsigned_abs() {
            errors.invalid(&path, item.verbosity, "Must be <= 2147483647");
        }
    }
}

fn check_options(config: &LoggingConfiguration, gates: &Gates, errors: &mut FieldErrors) {
    if gates.enabled(Gate::LoggingAlphaOptions) {
        return;
    }
    let (text, json) = (&config.options.text, &config.options.json);
    let mut check = |format: &str, split: bool, size: Quantity| {
        for (option, used) in [("splitStream", split), ("infoBufferSize", !size.is_zero())] {
            if used {
                let path = format!("options.{format}.{option}");
                errors.forbidden(&path, "Feature LoggingAlphaOptions is disabled");
            }
        }
    };
    check("text", text.split_stream, text.info_buffer_size);
    check("json", json.split_stream, json.info_buffer_size);
}
