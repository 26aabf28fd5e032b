//! The table of the layers of a model: output, parameters and operations of each.

use deltafl::model::stack::{ShapedLayer, Stack};

/// Renders the layers of a stack, with a row for the input and one for the totals.
///
/// Operations are the multiplications and additions of a forward pass of one example.
pub fn rendered(stack: &Stack) -> String {
    let mut rows = vec![["layer", "output", "parameters", "operations"].map(str::to_owned)];
    rows.push(["input".to_owned(), stack.input.to_string(), String::new(), String::new()]);
    add_rows(&stack.layers, 0, &mut rows);
    let totals = [grouped(stack.params() as u64), grouped(stack.operations())];
    let [params, operations] = totals;
    rows.push(["total".to_owned(), String::new(), params, operations]);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 4] = std::array::from_fn(width);
    let line = |row: &[String; 4]| {
        let [layer, output, params, operations] = row;
        let [a, b, c, d] = widths;
        format!("{layer:<a$}  {output:<b$}  {params:>c$}  {operations:>d$}").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn add_rows(layers: &[ShapedLayer], depth: usize, rows: &mut Vec<[String; 4]>) {
    for (i, layer) in layers.iter().enumerate() {
        let options: Vec<String> =
            layer.layer.options().iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let is_head = depth == 0 && i + 1 == layers.len();
        let suffix = if is_head { " (head)" } else { "" };
        let name = [layer.layer.kind().to_owned(), options.join(", ")].join(" ");
        let name = format!("{}{}{suffix}", "  ".repeat(depth), name.trim_end());
        let own = |value: u64| if value == 0 { String::new() } else { grouped(value) };
        rows.push([name, layer.output.to_string(), own(layer.params as u64), own(layer.operations)]);
        add_rows(&layer.layers, depth + 1, rows);
    }
}

/// Returns a number with a comma between groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let comma = |i: usize| i > 0 && (digits.len() - i).is_multiple_of(3);
    let parts = digits.chars().enumerate().map(|(i, digit)| (comma(i).then_some(','), digit));
    parts.flat_map(|(comma, digit)| comma.into_iter().chain([digit])).collect()
}

#[cfg(test)]
mod tests {
    use deltafl::data::{FederationBuilder, InputKind};
    use deltafl::model::CNN;

    use super::*;

    #[test]
    fn the_table_has_shapes_parameters_and_operations() {
        let federation = FederationBuilder::new("images", InputKind::Bytes { dim: 3072 }, 10).build();
        let stack = CNN.spec().stack(&federation).unwrap().unwrap();
        let table = rendered(&stack);
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["layer", "output", "parameters", "operations"]);
        assert_eq!(lines[1], ["input", "3", "×", "32", "×", "32"]);
        let conv = [
            "conv2d",
            "channels",
            "=",
            "32,",
            "size",
            "=",
            "3",
            "32",
            "×",
            "30",
            "×",
            "30",
            "896",
            "1,555,200",
        ];
        assert_eq!(lines[2], conv);
        assert_eq!(*lines.last().unwrap(), ["total", "6,447,562", "43,441,536"]);
    }
}
