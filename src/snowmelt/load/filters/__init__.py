"""The filters that come with the project, by their SQL names."""
