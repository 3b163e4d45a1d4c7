"""From a model to one functional graph of ATen and IR ops, before anything is split or lowered."""
