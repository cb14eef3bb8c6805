//! Counters, gauges and histograms, each with a fixed number of labels.
//!
//! A combination of labels appears with its first value; a metric without labels is there from the start.

use std::array;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use jiff::Timestamp;
use settings::go::double_text;

use super::text::{About, Entry, MetricType, Stability};

/// A metric that the page can show.
pub trait Metric {
    fn about(&self) -> About;
    fn entry(&self) -> Entry;
}

/// A counter with labels.
#[derive(Debug)]
pub struct CounterVec<const N: usize>(Series<N, f64>);

/// A gauge with labels.
#[derive(Debug)]
pub struct GaugeVec<const N: usize>(Series<N, f64>);

/// A gauge of the seconds from a time until the page is read; 0 without a time.
#[derive(Debug)]
pub struct AgeVec<const N: usize>(Series<N, Option<Instant>>);

/// A histogram with labels.
#[derive(Debug)]
pub struct HistogramVec<const N: usize> {
    series: Series<N, Distribution>,
    bounds: &'static [f64],
}

/// The number of values in each bucket, of which the last has no bound.
#[derive(Clone, Debug, Default)]
struct Distribution {
    counts: Vec<u64>,
    sum: f64,
}

impl<const N: usize> CounterVec<N> {
    /// Labels must be sorted by name, as the page shows them.
    pub fn new(
        stability: Stability,
        name: &'static str,
        labels: [&'static str; N],
        help: &'static str,
    ) -> Self {
        let about = About { name, help, kind: MetricType::Counter, stability: Some(stability) };
        Self(Series::new(about, labels, 0.0))
    }

    pub fn increment(&self, labels: [&str; N]) {
        self.add(labels, 1.0);
    }

    pub fn add(&self, labels: [&str; N], more: f64) {
        self.0.change(labels, |value| *value += more);
    }

    pub fn clear(&self) {
        self.0.clear();
    }
}

impl<const N: usize> GaugeVec<N> {
    /// Labels must be sorted by name, as the page shows them.
    pub fn new(
        stability: Stability,
        name: &'static str,
        labels: [&'static str; N],
        help: &'static str,
    ) -> Self {
        let about = About { name, help, kind: MetricType::Gauge, stability: Some(stability) };
        Self(Series::new(about, labels, 0.0))
    }

    pub fn set(&self, labels: [&str; N], value: f64) {
        self.0.change(labels, |current| *current = value);
    }

    /// Sets the value to the seconds since the epoch.
    pub fn set_to_time(&self, labels: [&str; N], time: Timestamp) {
        self.set(labels, time.as_duration().as_secs_f64());
    }

    pub fn clear(&self) {
        self.0.clear();
    }
}

impl<const N: usize> AgeVec<N> {
    /// Labels must be sorted by name, as the page shows them.
    pub fn new(
        stability: Stability,
        name: &'static str,
        labels: [&'static str; N],
        help: &'static str,
    ) -> Self {
        let about = About { name, help, kind: MetricType::Gauge, stability: Some(stability) };
        Self(Series::new(about, labels, None))
    }

    pub fn since(&self, labels: [&str; N], time: Option<Instant>) {
        self.0.change(labels, |current| *current = time);
    }
}

impl<const N: usize> HistogramVec<N> {
    /// Labels must be sorted by name and bounds must ascend. A last bucket without a bound is added.
    pub fn new(
        stability: Stability,
        name: &'static str,
        labels: [&'static str; N],
        bounds: &'static [f64],
        help: &'static str,
    ) -> Self {
        let about = About { name, help, kind: MetricType::Histogram, stability: Some(stability) };
        Self { series: Series::new(about, labels, Distribution::default()), bounds }
    }

    pub fn observe(&self, labels: [&str; N], value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.series.change(labels, |distribution| {
            distribution.counts.resize(self.bounds.len() + 1, 0);
            if let Some(count) = distribution.counts.get_mut(bucket) {
                *count += 1;
            }
            distribution.sum += value;
        });
    }
}

impl<const N: usize> Metric for CounterVec<N> {
    fn about(&self) -> About {
        self.0.about
    }

    fn entry(&self) -> Entry {
        self.0.entry()
    }
}

impl<const N: usize> Metric for GaugeVec<N> {
    fn about(&self) -> About {
        self.0.about
    }

    fn entry(&self) -> Entry {
        self.0.entry()
    }
}

impl<const N: usize> Metric for AgeVec<N> {
    fn about(&self) -> About {
        self.0.about
    }

    fn entry(&self) -> Entry {
        self.0.entry_of(|time| time.map_or(0.0, |time| time.elapsed().as_secs_f64()))
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts are floats to Prometheus")]
impl<const N: usize> Metric for HistogramVec<N> {
    fn about(&self) -> About {
        self.series.about
    }

    fn entry(&self) -> Entry {
        let mut entry = Entry::new(self.series.about);
        let bounds: Vec<_> = self.bounds.iter().chain([&f64::INFINITY]).map(|b| double_text(*b)).collect();
        for (labels, distribution) in self.series.values().iter() {
            let named = || self.series.labels.iter().copied().zip(labels.iter().map(|value| &**value));
            let mut below = 0;
            for (bound, count) in bounds.iter().zip(&distribution.counts) {
                below += count;
                entry.part("_bucket", named().chain([("le", bound.as_str())]), below as f64);
            }
            entry.part("_sum", named(), distribution.sum);
            entry.part("_count", named(), below as f64);
        }
        entry
    }
}

/// A value for each combination of labels that was ever used, sorted by labels. There are few of them.
#[derive(Debug)]
struct Series<const N: usize, V> {
    about: About,
    labels: [&'static str; N],
    initial: V,
    values: Mutex<Values<N, V>>,
}

type Values<const N: usize, V> = Vec<([Box<str>; N], V)>;

impl<const N: usize, V: Clone> Series<N, V> {
    fn new(about: About, labels: [&'static str; N], initial: V) -> Self {
        let series = Self { about, labels, initial, values: Mutex::default() };
        if N == 0 {
            series.change([""; N], |_| ());
        }
        series
    }

    fn change(&self, labels: [&str; N], change: impl FnOnce(&mut V)) {
        let mut values = self.values();
        let place = values.binary_search_by(|(known, _)| known.iter().map(|value| &**value).cmp(labels));
        let place = place.unwrap_or_else(|place| {
            values.insert(
                place,
                (array::from_fn(|n| labels.get(n).copied().unwrap_or("").into()), self.initial.clone()),
            );
            place
        });
        if let Some((_, value)) = values.get_mut(place) {
            change(value);
        }
    }

    fn clear(&self) {
        self.values().clear();
    }

    fn entry_of(&self, number: impl Fn(&V) -> f64) -> Entry {
        let mut entry = Entry::new(self.about);
        for (labels, value) in self.values().iter() {
            entry.sample(self.labels.iter().copied().zip(labels.iter().map(|value| &**value)), number(value));
        }
        entry
    }

    // No change leaves the values inconsistent, even if it panics.
    fn values(&self) -> MutexGuard<'_, Values<N, V>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<const N: usize> Series<N, f64> {
    fn entry(&self) -> Entry {
        self.entry_of(|value| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::page;
    use super::*;

    #[test]
    fn a_metric_without_labels_is_shown_from_the_start() {
        let counter = CounterVec::new(Stability::Alpha, "c", [], "Counts.");
        assert_eq!(page(vec![counter.entry()]), "# HELP c [ALPHA] Counts.\n# TYPE c counter\nc 0\n");
        let labelled = CounterVec::new(Stability::Alpha, "c", ["code"], "Counts.");
        assert_eq!(page(vec![labelled.entry()]), "");
    }

    #[test]
    fn series_are_ordered_by_their_labels() {
        let gauge = GaugeVec::new(Stability::Stable, "g", ["a", "b"], "Goes.");
        gauge.set(["2", "1"], 4.0);
        gauge.set(["1", "2"], 3.0);
        gauge.set(["1", "1"], 1.0);
        gauge.set(["1", "1"], 2.0);
        let want = "# HELP g [STABLE] Goes.\n# TYPE g gauge\n\
                    g{a=\"1\",b=\"1\"} 2\ng{a=\"1\",b=\"2\"} 3\ng{a=\"2\",b=\"1\"} 4\n";
        assert_eq!(page(vec![gauge.entry()]), want);
        gauge.clear();
        assert_eq!(page(vec![gauge.entry()]), "");
    }

    #[test]
    fn an_age_is_computed_when_it_is_read() {
        let age = AgeVec::new(Stability::Alpha, "a", ["x"], "Waits.");
        age.since(["y"], None);
        assert_eq!(page(vec![age.entry()]), "# HELP a [ALPHA] Waits.\n# TYPE a gauge\na{x=\"y\"} 0\n");
        age.since(["y"], Instant::now().checked_sub(std::time::Duration::from_secs(5)));
        let read = || -> f64 { page(vec![age.entry()]).trim().rsplit_once(' ').unwrap().1.parse().unwrap() };
        let first = read();
        assert!(first >= 5.0 && read() > first, "{first}");
    }

    #[test]
    fn a_value_equal_to_a_bound_is_in_its_bucket() {
        let histogram = HistogramVec::new(Stability::Beta, "h", ["x"], &[0.5, 2_000_000.0], "Sizes.");
        for value in [-1.0, 0.5, 0.75, 3e6] {
            histogram.observe(["y"], value);
        }
        let want = "# HELP h [BETA] Sizes.\n# TYPE h histogram\n\
                    h_bucket{x=\"y\",le=\"0.5\"} 2\nh_bucket{x=\"y\",le=\"2e+06\"} 3\n\
                    h_bucket{x=\"y\",le=\"+Inf\"} 4\nh_sum{x=\"y\"} 3.00000025e+06\nh_count{x=\"y\"} 4\n";
        assert_eq!(page(vec![histogram.entry()]), want);
    }
}
