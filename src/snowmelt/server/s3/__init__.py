"""The S3 endpoint: requests as boto3 and the AWS CLI send them, answers as they expect them."""
